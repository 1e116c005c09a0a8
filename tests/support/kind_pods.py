"""A run in kind whose pods are lost: which ports of each other they open, and what each loss has cost."""

from __future__ import annotations

import subprocess
from typing import Any

from psfleet.addresses import DATA_PORT
from psfleet.manifests.container import EXCHANGE_PORT
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from support.kind_fleet import RECOVERY_SECS, START_SECS, Object, Space, index_of, is_alive
from support.visitors import STRANGER

NAME = "single"
STEPS = 1000
"""At the pace below far more than all that is done to the run takes."""
STEPS_ON = 5


def opened(space: Space, by: Object, at: Object) -> list[int]:
    """The ports of one pod that another one opens."""
    name, host, ports = by["metadata"]["name"], at["status"]["podIP"], map(str, range(DATA_PORT, EXCHANGE_PORT + 1))
    return [*map(int, space.kubectl("exec", name, "--", "python", "-c", STRANGER.read_text(), host, *ports).split())]


def replaced(space: Space, component: str, index: int) -> None:
    """Deletes a pod, waits for the next one, and for steps after that."""
    old = space.pod(component, index)
    space.kubectl("delete", "pod", old["metadata"]["name"], "--wait=false")

    def successor() -> list[Object]:
        found = [pod for pod in space.pods(component) if index_of(pod) == index and is_alive(pod)]
        return [pod for pod in found if pod["metadata"]["uid"] != old["metadata"]["uid"]]

    wait_until(successor, RECOVERY_SECS, f"a new pod of {component} {index}", poll_secs=1)
    space.wait_for_step(NAME, space.step(NAME) + STEPS_ON)


def started(space: Space, tls: bool, **sections: Any) -> subprocess.Popen[str]:
    """`psfleet up` of a run that trains."""
    train = {"steps": STEPS, "batch_size": 1}
    up = space.start("up", space.job_file(NAME, {"step_secs": 0.3}, train=train, tls=tls, **sections))
    space.wait_for_step(NAME, 1, START_SECS)
    return up


def restarts(space: Space, up: subprocess.Popen[str]) -> set[tuple[str, int, int]]:
    """Lets the run end, which must be done in its first generation; role, index and lost steps of its restarts."""
    report = ended(space, up)
    assert report.generation == 1
    found = [event for event in report.events if event.kind == "restarted"]
    return {(event.role, event.index, event.steps_lost) for event in found}


def ended(space: Space, up: subprocess.Popen[str]) -> Report:
    """Lets the run end, which must be done; its report."""
    for pod in space.pods("chief") + space.pods("worker"):
        if is_alive(pod):
            space.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/released")
    assert up.wait(START_SECS) == 0, space.printed(up)
    report = Report.read(space.folder / "runs" / NAME)
    assert (report.status, report.final_step) == ("done", STEPS)
    return report
