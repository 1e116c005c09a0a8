"""One fleet over two nodes, and what befalls its pods.

A fleet takes a minute to start, so all faults share one: each test counts from what it finds, and leaves the fleet
training. The last one ends the run, and causes the events that it expects in the report itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.kind_fleet import COMMAND_SECS, RECOVERY_SECS, START_SECS, Object, Space, Watcher, index_of, is_alive

from psfleet.errors import LOST_PEERS
from psfleet.manifests.kubernetes.names import COMPONENT
from psfleet.polling import wait_until
from psfleet.report.schema import Report

NAME = "long"
PS, WORKERS, SPARES = 2, 2, 1
STEPS = 1500
CHECKPOINT_STEPS = 20
JOBS = ("ps", "chief", "worker")
OURS = "--pod-selector=app.kubernetes.io/part-of=psfleet"
STEPS_ON = 5
"""A fleet that has made so many steps after a fault has got over it."""

pytestmark = pytest.mark.timeout(RECOVERY_SECS * 3)


@pytest.fixture(scope="module")
def fleet(shared_space: Space) -> Iterator[Space]:
    """Trains slowly, with a volume that only one node mounts."""
    space = shared_space
    job = space.job_file(
        NAME,
        {"step_secs": 0.5},
        fleet={"ps": PS, "workers": WORKERS, "spares": SPARES, "max_workers": 5},
        train={"steps": STEPS, "batch_size": 1},
        checkpoint={"every_steps": CHECKPOINT_STEPS, "keep": 3},
        container={"active_secs": 3600},
    )
    up = space.start("up", job)
    space.wait_for_step(NAME, 1, START_SECS)
    yield space
    up.kill()


def lives(space: Space) -> int:
    """Checks that a fleet trains on from where it is; the step it came to."""
    return space.wait_for_step(NAME, space.step(NAME) + STEPS_ON)


def delete(space: Space, component: str, index: int) -> tuple[Object, Object]:
    """Deletes the pod of an index; returns it and the pod that replaced it."""
    old = space.pod(component, index)
    space.kubectl("delete", "pod", old["metadata"]["name"], "--wait=false")

    def successor() -> list[Object]:
        found = [pod for pod in space.pods(component) if index_of(pod) == index and is_alive(pod)]
        return [pod for pod in found if pod["status"]["phase"] == "Running" and uid(pod) != uid(old)]

    return old, wait_until(successor, RECOVERY_SECS, f"a new pod of {component} {index}", poll_secs=1)[0]


def started(space: Space, component: str, index: int) -> Object:
    """The pod of an index once its startup probe has passed, which alone has a deadline of `deadlines.start_secs`.

    The fault before may have left a pod that is still to be created, or that starts.
    """

    def look() -> list[Object]:
        pod = space.pod(component, index)
        return [pod for each in pod["status"].get("containerStatuses", ()) if each["started"]]

    return wait_until(look, RECOVERY_SECS, f"{component} {index} to answer its probes", poll_secs=1)[0]


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def events(space: Space) -> list[Object]:
    """What the chief has noted on the volume."""
    name = space.pod("chief", 0)["metadata"]["name"]
    lines = space.kubectl("exec", name, "--", "sh", "-c", "cat /out/events.jsonl 2>/dev/null || true").splitlines()
    return [json.loads(line) for line in lines]


def steps_lost(space: Space) -> int:
    """By all faults until now."""
    return sum(event["steps_lost"] for event in events(space))


def others(space: Space, component: str, index: int) -> set[str]:
    """The pods of all other places."""
    pods = [pod for pod in space.pods() if is_alive(pod)]
    place = component, index
    return {uid(pod) for pod in pods if (pod["metadata"]["labels"][COMPONENT], index_of(pod)) != place}


def test_a_fleet_with_a_volume_of_one_node_trains_on_several(fleet: Space) -> None:
    pods = [pod for pod in fleet.pods() if is_alive(pod)]
    assert fleet.get("pvc", NAME)["spec"]["accessModes"] == ["ReadWriteOnce"]
    mounting = [pod for pod in pods if any("persistentVolumeClaim" in each for each in pod["spec"]["volumes"])]
    assert [pod["metadata"]["labels"][COMPONENT] for pod in mounting] == ["chief"]
    for components in (["ps"], ["chief", "worker"]):
        nodes = {pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["labels"][COMPONENT] in components}
        assert len(nodes) == 2, f"{components} are on {nodes}"


@pytest.mark.parametrize("index", [1, 2], ids=["worker", "spare"])
def test_a_deleted_worker_is_replaced_and_costs_no_step(fleet: Space, index: int) -> None:
    before, lost = fleet.step(NAME), steps_lost(fleet)
    rest = others(fleet, "worker", index)
    delete(fleet, "worker", index)
    assert lives(fleet) > before
    assert others(fleet, "worker", index) == rest, "nobody else was started again"
    assert steps_lost(fleet) == lost


def test_a_worker_without_memory_is_replaced_and_status_says_why(fleet: Space) -> None:
    before = fleet.step(NAME)
    victim = fleet.pod("worker", 1)["metadata"]["name"]
    fleet.kubectl("exec", victim, "--", "touch", "/tmp/eat-1")

    def status() -> str:
        return fleet.psfleet("status", NAME)

    reason = "OOMKilled: out of memory, the limit is 1Gi"
    wait_until(status, RECOVERY_SECS, "the reason in status", done=lambda text: reason in text, poll_secs=1)
    fleet.pod("worker", 1)
    assert lives(fleet) > before


def test_a_frozen_worker_is_ended_by_its_probe_and_counts_as_a_restart(fleet: Space) -> None:
    failed = fleet.job(f"{NAME}-worker")["status"].get("failed", 0)
    victim = started(fleet, "worker", 1)["metadata"]["name"]
    of_victim = f"--field-selector=reason=Killing,involvedObject.name={victim}"
    with Watcher(fleet) as watcher:
        fleet.kubectl("exec", victim, "--", "sh", "-c", "kill -STOP -1")
        what = "the kubelet to end the container for its probes"
        wait_until(lambda: fleet.get("events", of_victim)["items"], RECOVERY_SECS, what, poll_secs=1)
        fleet.kubectl("exec", victim, "--", "sh", "-c", "kill -CONT -1")
        wait_until(
            lambda: fleet.pod("worker", 1)["metadata"]["name"], RECOVERY_SECS, "a new pod of worker 1",
            done=lambda name: name != victim, poll_secs=1,
        )  # fmt: skip
        lives(fleet)
    assert watcher.exit_codes()[victim] == LOST_PEERS
    assert fleet.job(f"{NAME}-worker")["status"]["failed"] == failed + 1, "an eviction is not counted"


def test_a_deleted_ps_comes_back_with_another_address_and_costs_steps_since_the_checkpoint(fleet: Space) -> None:
    before = len(events(fleet))
    old, new = delete(fleet, "ps", 1)
    lives(fleet)
    now = fleet.get("pod", new["metadata"]["name"])
    assert now["status"]["podIP"] != old["status"]["podIP"]
    noted = [event for event in events(fleet)[before:] if event["role"] == "ps"]
    assert [event["index"] for event in noted] == [1]
    # Those since the newest whole checkpoint, and those that the fleet made while it was written.
    assert noted[0]["steps_lost"] <= 2 * CHECKPOINT_STEPS


def test_a_deleted_chief_is_replaced_and_costs_no_step(fleet: Space) -> None:
    before, lost = fleet.step(NAME), steps_lost(fleet)
    rest = others(fleet, "chief", 0)
    delete(fleet, "chief", 0)
    fleet.wait_for_step(NAME, before + STEPS_ON)
    assert others(fleet, "chief", 0) == rest, "nobody else was started again"
    assert steps_lost(fleet) == lost


def test_more_workers_join_and_those_removed_are_not_missed(fleet: Space) -> None:
    fleet.psfleet("scale", NAME, "--workers", "4")
    wait_until(lambda: fleet.pod("worker", 3)["status"]["phase"], RECOVERY_SECS, "the new pod", done="Running".__eq__)

    def joined() -> list[int]:
        chief = fleet.entries(fleet.pod("chief", 0)["metadata"]["name"])
        tables = [entry for entry in chief if entry.get("event") == "fleet"]
        return [row["index"] for row in tables[-1]["workers"] if row["alive"] and row["step"] > 0] if tables else []

    wait_until(joined, RECOVERY_SECS, "worker 3 to take part", done=lambda found: 3 in found, poll_secs=1)
    spec = fleet.job(f"{NAME}-worker")["spec"]
    assert (spec["completions"], spec["parallelism"]) == (3, 3), "and the chief"
    fleet.psfleet("scale", NAME, "--workers", "2")
    lives(fleet)
    wait_until(
        lambda: [index_of(pod) for pod in fleet.pods("worker") if is_alive(pod)], RECOVERY_SECS, "one worker",
        done=[1].__eq__, poll_secs=1,
    )  # fmt: skip
    assert "expected 2 to 5" in fleet.psfleet("scale", NAME, "--workers", "6", code=64)


def node_of_a_ps_only(space: Space) -> str:
    """A node of a ps on which the chief with its volume is not; if there is none, a ps moves to one."""
    chief = space.pod("chief", 0)["spec"]["nodeName"]

    def found() -> list[str]:
        return sorted({pod["spec"]["nodeName"] for pod in space.pods("ps") if is_alive(pod)} - {chief})

    if not found():
        space.kubectl("cordon", chief)
        try:
            delete(space, "ps", 1)
        finally:
            space.kubectl("uncordon", chief)
        lives(space)
    return found()[0]


def test_a_drained_node_costs_no_attempt(fleet: Space) -> None:
    node = node_of_a_ps_only(fleet)
    before = fleet.step(NAME)
    failed = {name: fleet.job(f"{NAME}-{name}")["status"].get("failed", 0) for name in JOBS}
    try:
        with Watcher(fleet) as watcher:
            drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s", OURS)
            fleet.kubectl(*drain, secs=250)
            fleet.wait_for_step(NAME, max(before - 2 * CHECKPOINT_STEPS, 0) + STEPS_ON)
            lives(fleet)
        alive = [pod for pod in fleet.pods() if is_alive(pod)]
        assert node not in {pod["spec"]["nodeName"] for pod in alive}
        for name, count in failed.items():
            now = fleet.job(f"{NAME}-{name}")["status"].get("failed", 0)
            assert now == count, f"{name}; exit codes: {watcher.exit_codes()}"
    finally:
        fleet.kubectl("uncordon", node)


@pytest.mark.timeout(RECOVERY_SECS * 5)
def test_a_suspended_fleet_is_said_to_be_resumes_and_reaches_its_target(fleet: Space) -> None:
    """The last test, for the run ends with it: the report has an event that an earlier pod of the chief noted."""
    delete(fleet, "ps", 0)
    lives(fleet)
    names = [f"{NAME}-{job}" for job in JOBS]
    for name in names:
        fleet.kubectl("patch", "job", name, "--patch", '{"spec": {"suspend": true}}')
    wait_until(lambda: [pod for pod in fleet.pods() if is_alive(pod)], COMMAND_SECS, "no pod", done=lambda p: not p)
    assert "suspended" in fleet.psfleet("status", NAME)
    for name in names:
        fleet.kubectl("patch", "job", name, "--patch", '{"spec": {"suspend": false}}')
    fleet.wait_for_step(NAME, 1, START_SECS)
    lives(fleet)
    up = fleet.processes[0]
    for place in (("chief", 0), ("worker", 1)):
        fleet.kubectl("exec", fleet.pod(*place)["metadata"]["name"], "--", "touch", "/tmp/released")
    assert up.wait(2 * START_SECS) == 0, fleet.printed(up)
    assert "suspended" in fleet.printed(up)
    report = Report.read(fleet.folder / "runs" / NAME)
    assert (report.status, report.final_step) == ("done", STEPS)
    assert "ps" in {event.role for event in report.events}, "of before the chief was replaced"
    assert report.seconds > report.events[-1].time - report.events[0].time
    assert report.gradients.dropped == report.gradients.pushed - report.gradients.used
