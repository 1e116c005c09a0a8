"""Nobody gets in: what a pod outside of the fleet can reach, and what the pods of the fleet may do; its results.

The fleet trains for as long as the test wants: its results are fetched while it trains, and after it was taken down.
"""

from __future__ import annotations

import signal

import pytest
from support.kind_fleet import COMMAND_SECS, START_SECS, Space
from support.visitors import STRANGER, address, opens, pod_manifest

from psfleet.checkpoint.store import newest
from psfleet.cli.fleets import INTERRUPTED
from psfleet.polling import wait_until
from psfleet.report.schema import Report

FLEET_PORTS = ("2222", "2223", "2224", "2225", "2226")
OPEN_PORT = "8000"


DENY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {app: open}}
  policyTypes: [Ingress]
"""


@pytest.mark.timeout(900)
def test_a_pod_outside_the_fleet_opens_none_of_its_ports(space: Space) -> None:
    space.apply("stranger", pod_manifest("stranger", "sleep", "3600"))
    space.apply("open", pod_manifest("open", "python", "-m", "http.server", OPEN_PORT))
    job = space.job_file("shut", {"step_secs": 0.3}, train={"steps": 100000, "batch_size": 1})
    up = space.start("up", job)
    target = address(space, "open")
    address(space, "stranger")
    wait_until(lambda: opens(space, target, OPEN_PORT), START_SECS, "a pod without a policy to be reached", poll_secs=1)
    space.apply("deny", DENY)
    wait_until(
        lambda: opens(space, target, OPEN_PORT), 60, "the network to enforce policies, which this cluster's does not",
        done=lambda found: not found, poll_secs=1,
    )  # fmt: skip
    space.wait_for_step("shut", 1, START_SECS)
    for pod in space.pods():
        assert opens(space, pod["status"]["podIP"], *FLEET_PORTS) == [], pod["metadata"]["name"]
    ps, worker = space.pod("ps", 0), space.pod("worker", 1)["metadata"]["name"]
    for pod, expected in ((ps, ["2222", "2223", "2226"]), (space.pod("chief", 0), [])):
        host = pod["status"]["podIP"]
        inside = space.kubectl("exec", worker, "--", "python", "-c", STRANGER.read_text(), host, *FLEET_PORTS)
        assert inside.split() == expected, "its own workers reach what they need, and no more"
    token = space.kubectl(
        "exec", ps["metadata"]["name"], "--", "sh", "-c", "ls /var/run/secrets/kubernetes.io 2>/dev/null || echo none"
    )  # fmt: skip
    assert token.strip() == "none"
    up.send_signal(signal.SIGINT)
    assert up.wait(COMMAND_SECS) == INTERRUPTED
    assert "the fleet runs\nno report yet" in space.psfleet("results", job, "--out", "fetched", secs=START_SECS)
    assert (space.folder / "fetched" / "logs" / "worker-0.log").stat().st_size
    space.psfleet("down", "shut", secs=180)
    check_fetched(space, job)
    space.psfleet("down", "shut", "--results", secs=180)
    assert not space.kubectl(
        "get", "jobs,services,configmaps,pvc", "-l", "app.kubernetes.io/part-of=psfleet", "-o", "name"
    )


def check_fetched(space: Space, job: str) -> None:
    """The results of a fleet that was taken down are fetched from its volume, by a pod that does not stay."""
    assert [name.partition("/")[0] for name in space.kubectl("get", "jobs,pvc", "-o", "name").split()] == [
        "persistentvolumeclaim"
    ]
    assert "status:          stopped" in space.psfleet("results", job, "--out", "fetched", secs=START_SECS)
    report, found = Report.read(space.folder / "fetched"), newest(space.folder / "fetched" / "checkpoints")
    assert found is not None, "no checkpoint was copied"
    assert report.checkpoint is not None
    assert (report.checkpoint.path, report.final_step) == (str(found.folder), found.step)
    assert found.step >= 1
    wait_until(
        lambda: space.kubectl("get", "pods", "-o", "name"), COMMAND_SECS, "the pod that read the volume to go",
        done=lambda names: "-results-" not in names, poll_secs=1,
    )  # fmt: skip
