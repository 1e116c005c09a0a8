"""In-graph replication in pods: which pods can connect, and the loss of a worker and of the chief."""

from __future__ import annotations

import pytest
from support.kind_fleet import RECOVERY_SECS, START_SECS, Object, Space, index_of, is_alive
from support.visitors import STRANGER

from psfleet.addresses import DATA_PORT
from psfleet.manifests.container import CONTROL_PORT, TUNNEL_PORT
from psfleet.polling import wait_until
from psfleet.report.schema import Report

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
    space.wait_for_step("single", space.step("single") + STEPS_ON)


@pytest.mark.timeout(START_SECS * 3)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_chief_and_workers_reach_each_other_and_a_lost_one_costs_no_step(space: Space, tls: bool) -> None:
    data = TUNNEL_PORT if tls else DATA_PORT
    job = space.job_file(
        "single",
        {"step_secs": 0.3},
        fleet={"ps": 1, "workers": 3},
        update={"replication": "in_graph"},
        train={"steps": STEPS, "batch_size": 1},
        tls=tls,
    )
    up = space.start("up", job)
    space.wait_for_step("single", 1, START_SECS)
    chief, first, second = space.pod("chief", 0), space.pod("worker", 1), space.pod("worker", 2)
    assert set(opened(space, chief, first)) == {data, CONTROL_PORT}
    assert opened(space, first, chief) == [data]
    assert opened(space, first, second) == []
    replaced(space, "worker", 1)
    replaced(space, "chief", 0)
    for pod in space.pods("chief") + space.pods("worker"):
        if is_alive(pod):
            space.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/released")
    assert up.wait(START_SECS) == 0, space.printed(up)
    report = Report.read(space.folder / "runs" / "single")
    assert (report.status, report.final_step, report.generation) == ("done", STEPS, 1)
    assert {(event.role, event.steps_lost) for event in report.events if event.kind == "restarted"} == {
        ("worker", 0),
        ("chief", 0),
    }
