"""A node of the cluster is lost: a fleet goes on elsewhere, or `up` says that it cannot; no run is a false success."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.images import docker
from support.kind_fleet import COMMAND_SECS, RECOVERY_SECS, START_SECS, Space, is_alive

from psfleet.errors import LOST_PEERS
from psfleet.polling import wait_until
from psfleet.report.schema import Report

STEPS = 1000
CHECKPOINT_STEPS = 10
NOTICED_SECS = 180.0
"""Until the node controller misses a node: 50 s."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"

pytestmark = pytest.mark.timeout(START_SECS * 2 + RECOVERY_SECS * 3)


@contextmanager
def lost(space: Space, node: str) -> Iterator[None]:
    """A node whose machine is off, and which an administrator has declared out of service; it is back after the block.

    See "Non-graceful node shutdown handling" in the documentation of Kubernetes.
    """
    docker("stop", "--time=1", node)
    try:
        wait_until(
            lambda: is_ready(space, node), NOTICED_SECS, f"node {node} to be missed",
            done=lambda ready: not ready, poll_secs=1,
        )  # fmt: skip
        space.kubectl("taint", "node", node, f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")
        yield
    finally:
        space.kubectl("taint", "node", node, f"{OUT_OF_SERVICE}-", check=False)
        docker("start", node)
        wait_until(lambda: is_ready(space, node), NOTICED_SECS, f"node {node} to be back", poll_secs=1)


def is_ready(space: Space, node: str) -> bool:
    conditions = space.get("node", node)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def started(space: Space, name: str) -> tuple[str, str]:
    """Starts a fleet over both nodes; its job file, and the node of its chief."""
    job = space.job_file(
        name, {"step_secs": 0.5}, fleet={"ps": 2, "workers": 2, "spares": 1},
        train={"steps": STEPS, "batch_size": 1}, checkpoint={"every_steps": CHECKPOINT_STEPS, "keep": 3},
        deadlines={"start_secs": 90},
    )  # fmt: skip
    space.start("up", job)
    space.wait_for_step(name, CHECKPOINT_STEPS + 1, START_SECS)
    return job, space.pod("chief", 0)["spec"]["nodeName"]


def release(space: Space) -> None:
    """The steps take no longer than they must from now on."""
    for pod in [*space.pods("chief"), *space.pods("worker")]:
        if is_alive(pod) and pod["status"]["phase"] == "Running":
            space.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/released")


def test_a_run_whose_ps_was_on_a_lost_node_goes_on_elsewhere_to_its_end(space: Space) -> None:
    _, home = started(space, "moved")
    (away,) = {pod["spec"]["nodeName"] for pod in space.pods("ps")} - {home}
    before = space.step("moved")
    with lost(space, away):
        wait_until(
            lambda: {pod["spec"].get("nodeName") for pod in space.pods("ps") if is_alive(pod)}, RECOVERY_SECS,
            "both ps on the node that is left", done={home}.__eq__, poll_secs=1,
        )  # fmt: skip
        space.wait_for_step("moved", before + CHECKPOINT_STEPS)
        release(space)
        up = space.processes[0]
        assert up.wait(START_SECS) == 0, space.printed(up)
        report = Report.read(space.folder / "runs" / "moved")
        assert (report.status, report.final_step) == ("done", STEPS)
        assert report.generation > 1, "the shard was lost with the node"
        assert report.checkpoint is not None
        assert report.checkpoint.step == STEPS


def test_a_run_whose_volume_was_on_a_lost_node_ends_with_75_and_resumes_when_that_is_back(space: Space) -> None:
    """The volume is a folder of the chief's node."""
    job, home = started(space, "stuck")
    with lost(space, home):
        up = space.processes[0]
        assert up.wait(RECOVERY_SECS + 90) == LOST_PEERS, space.printed(up)
        assert "chief" in space.printed(up).splitlines()[-1], space.printed(up)
    again = space.start("up", job)
    space.wait_for_step("stuck", CHECKPOINT_STEPS, START_SECS)
    release(space)
    assert again.wait(START_SECS + COMMAND_SECS) == 0, space.printed(again)
    report = Report.read(space.folder / "runs" / "stuck")
    assert (report.status, report.final_step) == ("done", STEPS)
