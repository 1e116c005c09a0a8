"""One client drives the devices of other pods, of its replicas or parts: which can connect, and the loss of each."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from support.kind_fleet import RECOVERY_SECS, START_SECS, Object, Space, index_of, is_alive
from support.visitors import STRANGER

from psfleet.addresses import DATA_PORT
from psfleet.manifests.container import CONTROL_PORT, TUNNEL_PORT
from psfleet.polling import wait_until
from psfleet.report.schema import Report

NAME = "single"
STEPS = 1000
"""At the pace below far more than all that is done to the run takes."""
STEPS_ON = 5


def opened(space: Space, by: Object, at: Object) -> list[int]:
    """The ports of one pod that another one opens."""
    name, host, ports = by["metadata"]["name"], at["status"]["podIP"], map(str, range(DATA_PORT, TUNNEL_PORT + 1))
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


@pytest.mark.timeout(START_SECS * 3)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_chief_and_workers_reach_each_other_and_a_lost_one_costs_no_step(space: Space, tls: bool) -> None:
    data = TUNNEL_PORT if tls else DATA_PORT
    up = started(space, tls, fleet={"ps": 1, "workers": 3}, update={"replication": "in_graph"})
    chief, first, second = space.pod("chief", 0), space.pod("worker", 1), space.pod("worker", 2)
    assert set(opened(space, chief, first)) == {data, CONTROL_PORT}
    assert opened(space, first, chief) == [data]
    assert opened(space, first, second) == []
    replaced(space, "worker", 1)
    replaced(space, "chief", 0)
    assert restarts(space, up) == {("worker", 1, 0), ("chief", 0, 0)}


@pytest.mark.extended
@pytest.mark.timeout(START_SECS * 3)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_parts_of_a_replica_reach_each_other_and_a_lost_one_costs_no_step(space: Space, tls: bool) -> None:
    """Workers 0 and 2 are a replica, and 1 and 3."""
    data = TUNNEL_PORT if tls else DATA_PORT
    up = started(space, tls, fleet={"ps": 1, "workers": 4, "parts": 2})
    chief, first, part_of_chief, part_of_first = [
        space.pod("worker" if index else "chief", index) for index in range(4)
    ]
    assert set(opened(space, chief, part_of_chief)) == {data, CONTROL_PORT}
    assert opened(space, part_of_chief, chief) == [data]
    assert opened(space, first, part_of_first) == opened(space, part_of_first, first) == [data]
    assert opened(space, chief, first) == opened(space, chief, part_of_first) == [CONTROL_PORT]
    for own, other in ((first, chief), (first, part_of_chief), (part_of_chief, first), (part_of_first, chief)):
        assert opened(space, own, other) == [], f"{own['metadata']['name']} to {other['metadata']['name']}"
    replaced(space, "worker", 3)
    replaced(space, "worker", 2)
    replaced(space, "chief", 0)
    assert restarts(space, up) == {("worker", 3, 0), ("worker", 2, 0), ("chief", 0, 0)}


def started(space: Space, tls: bool, **sections: Any) -> subprocess.Popen[str]:
    """`psfleet up` of a run that trains."""
    train = {"steps": STEPS, "batch_size": 1}
    up = space.start("up", space.job_file(NAME, {"step_secs": 0.3}, train=train, tls=tls, **sections))
    space.wait_for_step(NAME, 1, START_SECS)
    return up


def restarts(space: Space, up: subprocess.Popen[str]) -> set[tuple[str, int, int]]:
    """Lets the run end, which must be done in its first generation; role, index and lost steps of its restarts."""
    for pod in space.pods("chief") + space.pods("worker"):
        if is_alive(pod):
            space.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/released")
    assert up.wait(START_SECS) == 0, space.printed(up)
    report = Report.read(space.folder / "runs" / NAME)
    assert (report.status, report.final_step, report.generation) == ("done", STEPS, 1)
    found = [event for event in report.events if event.kind == "restarted"]
    return {(event.role, event.index, event.steps_lost) for event in found}
