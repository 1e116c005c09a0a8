"""Containers that the cluster adds to pods, as a service mesh does, and Jobs and pods that a queue holds back."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from support.admission import admission
from support.images import PS_IMAGE
from support.kind_fleet import COMMAND_SECS, RECOVERY_SECS, START_SECS, Object, Space

from psfleet.errors import LOST_PEERS
from psfleet.polling import wait_until
from psfleet.report.schema import Report

PATIENCE_SECS = 60
"""`deadlines.start_secs`."""
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}
GATE = "kueue.x-k8s.io/admission"
MESH: Object = {
    "name": "mesh",
    "image": PS_IMAGE,
    "imagePullPolicy": "IfNotPresent",
    "command": ["/usr/bin/tini", "--", "sleep", "3600"],
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    },
}
"""A container that does not end by itself."""
INJECTED: dict[str, list[Object]] = {
    "sidecar": [{"op": "add", "path": "/spec/initContainers", "value": [{**MESH, "restartPolicy": "Always"}]}],
    "container": [{"op": "add", "path": "/spec/containers/0", "value": MESH}],
}
"""A sidecar, which the kubelet ends after the others; an ordinary container, which is the first one of the pod."""
KILL_ALL = ("sh", "-c", "kill -9 -1")

pytestmark = pytest.mark.timeout(START_SECS * 3)


def started(space: Space, name: str, **sections: Any) -> tuple[str, subprocess.Popen[str]]:
    """Starts a fleet that trains until it is released; its job file and the command."""
    job = space.job_file(
        name, {"step_secs": 0.3}, fleet={"ps": 1, "workers": 2, "max_restarts": 3},
        train={"steps": 400, "batch_size": 1}, checkpoint={"every_steps": 5, "keep": 2}, **sections,
    )  # fmt: skip
    return job, space.start("up", job)


@pytest.mark.parametrize("kind", INJECTED)
def test_an_injected_container_breaks_no_command_and_no_end(space: Space, kind: str) -> None:
    with admission(space, {"Pod": INJECTED[kind]}):
        job, up = started(space, "meshed")
        space.wait_for_step("meshed", 1, START_SECS)
        chief = space.pod("chief", 0)
        assert {"mesh", "chief"} == {
            each["name"] for each in [*chief["spec"]["containers"], *chief["spec"].get("initContainers", [])]
        }
        rows = [line.split() for line in space.psfleet("status", "meshed").splitlines()[1:]]
        assert [row[1:4] for row in rows] == [
            ["ps", "0", "running"],
            ["chief", "0", "running"],
            ["worker", "1", "running"],
        ]
        assert "chief" in space.psfleet("logs", "meshed", "chief", "--tail", "1")
        assert "/out/checkpoints/" in space.psfleet("save", job)
        assert "the fleet runs" in space.psfleet("results", job, "--out", "fetched", secs=START_SECS)
        assert (space.folder / "fetched" / "logs" / "worker-0.log").stat().st_size
        for place in (("chief", 0), ("worker", 1)):
            name = space.pod(*place)["metadata"]["name"]
            space.kubectl("exec", name, "-c", place[0], "--", "touch", "/tmp/released")
        assert up.wait(START_SECS) == 0, space.printed(up)
        report = Report.read(space.folder / "runs" / "meshed")
        assert (report.status, report.final_step, report.restarts) == ("done", 400, 0)
        assert not space.kubectl("get", "jobs,pods", "-o", "name").strip()


def test_a_failed_ps_whose_pod_an_injected_container_keeps_ends_up_with_75(space: Space) -> None:
    with admission(space, {"Pod": INJECTED["container"]}):
        _, up = started(space, "kept", deadlines={"start_secs": PATIENCE_SECS})
        space.wait_for_step("kept", 1, START_SECS)
        ps = space.pod("ps", 0)["metadata"]["name"]
        space.kubectl("exec", ps, "-c", "ps", "--", *KILL_ALL, check=False)
        said = (
            f"pod {ps} waits: container mesh, which the cluster has added, still runs: the Job cannot replace the pod"
        )
        wait_until(lambda: space.printed(up), COMMAND_SECS, said, done=lambda text: said in text, poll_secs=1)
        assert "container mesh" in space.psfleet("status", "kept")
        assert up.wait(RECOVERY_SECS) == LOST_PEERS, space.printed(up)
        space.psfleet("down", "kept", "--results", secs=180)


@pytest.mark.parametrize("held", ["Job", "Pod"])
def test_a_fleet_in_a_queue_waits_with_a_message_and_trains_once_it_is_admitted(space: Space, held: str) -> None:
    patches = {
        "Job": {"op": "add", "path": "/spec/suspend", "value": True},
        "Pod": {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]},
    }
    said = {"Job": "suspended", "Pod": "SchedulingGated"}[held]
    with admission(space, {held: [patches[held]]}, of_jobs=held == "Pod"):
        _, up = started(space, "queued", kubernetes={"job_labels": QUEUE}, deadlines={"start_secs": PATIENCE_SECS})
        wait_until(lambda: space.printed(up), COMMAND_SECS, said, done=lambda text: said in text, poll_secs=1)
        with pytest.raises(subprocess.TimeoutExpired):
            up.wait(PATIENCE_SECS + 5)
        assert said in space.psfleet("status", "queued")
        jobs = [job["metadata"] for job in space.get("jobs")["items"]]
        assert [QUEUE.items() <= job["labels"].items() for job in jobs] == [True] * 3
        if held == "Job":
            for job in jobs:
                space.kubectl("patch", "job", job["name"], "--patch", '{"spec": {"suspend": false}}')
        else:
            ungate = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
            for pod in space.pods():
                space.kubectl("patch", "pod", pod["metadata"]["name"], "--type=json", "--patch", ungate)
        space.wait_for_step("queued", 1, START_SECS)
        for place in (("chief", 0), ("worker", 1)):
            space.kubectl("exec", space.pod(*place)["metadata"]["name"], "--", "touch", "/tmp/released")
        assert up.wait(START_SECS) == 0, space.printed(up)
        assert Report.read(space.folder / "runs" / "queued").status == "done"
