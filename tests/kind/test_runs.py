"""Runs on a real cluster from their first pod to their last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.kind_fleet import COMMAND_SECS, START_SECS, Space, exit_codes

from psfleet.polling import wait_until
from psfleet.report.schema import Report

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.core

RUN_SECS = 900.0
JOBS = ("lenet-ps", "lenet-chief", "lenet-worker")


@pytest.mark.timeout(RUN_SECS + 300)
def test_the_manifests_of_the_tree_train_the_example(space: Space) -> None:
    text = space.kubectl("kustomize", str(ROOT / "k8s/overlays/kind"))
    # In the test's own namespace, and removed soon after the end.
    text = text.replace("namespace: psfleet", f"namespace: {space.name}").replace(
        "  name: psfleet\n", f"  name: {space.name}\n"
    )
    text = text.replace("ttlSecondsAfterFinished: 86400", "ttlSecondsAfterFinished: 20")
    manifests = space.folder / "manifests.yaml"
    manifests.write_text(text)
    space.kubectl("apply", "-f", str(manifests))

    def ends() -> list[str]:
        return [space.condition(name) for name in JOBS]

    wait_until(ends, RUN_SECS, "all Jobs to end", done=all, poll_secs=2)
    assert ends() == ["Complete"] * 3
    codes = exit_codes(space.pods())
    assert len(codes) >= 3, "both ps and the chief, at least"
    assert set(codes.values()) == {0}, codes
    chief = next(name for name in codes if name.startswith("lenet-chief-0"))
    evaluations = [entry for entry in space.entries(chief) if entry.get("event") == "evaluation"]
    assert evaluations[-1]["metrics"]["accuracy"] > 0.97

    def left() -> str:
        return space.kubectl("get", "jobs,pods", "-o", "name")

    wait_until(left, 20 + COMMAND_SECS, "jobs and pods to be removed", done=lambda text: not text.strip(), poll_secs=2)


@pytest.mark.timeout(RUN_SECS)
def test_several_up_show_progress_can_be_left_and_end_with_the_report(space: Space) -> None:
    job = space.job_file(
        "walk", {"step_secs": 0.2}, fleet={"ps": 2, "workers": 2, "spares": 1}, train={"steps": 300, "batch_size": 1},
        container={"keep_secs": 0},
    )  # fmt: skip
    first, other = space.start("up", job), space.start("up", job)
    for each in (first, other):
        wait_until(lambda each=each: "step " in space.printed(each), START_SECS, "progress", poll_secs=1)
    first.send_signal(2)
    assert first.wait(COMMAND_SECS) == 130
    assert "the run continues" in space.printed(first)
    before = {pod["metadata"]["uid"] for pod in space.pods()}
    second = space.start("up", job)
    wait_until(lambda: "step " in space.printed(second), COMMAND_SECS, "progress", poll_secs=1)
    assert {pod["metadata"]["uid"] for pod in space.pods()} == before, "nothing was started again"
    table = space.psfleet("status", "walk")
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["ps", "ps", "chief", "worker", "spare"]
    assert second.wait(START_SECS) == 0, space.printed(second)
    assert other.wait(COMMAND_SECS) == 0, space.printed(other)
    output = space.printed(second)
    left = [each for each in (other, second) if "another command follows fleet walk" in space.printed(each)]
    assert len(left) == 1, "the last one removes the fleet"
    assert "status:          done" in output
    assert "300 of 300" in output
    report = Report.read(space.folder / "runs" / "walk")
    assert (report.status, report.final_step, report.restarts) == ("done", 300, 0)
    assert report.checkpoint is not None
    assert (Path(report.checkpoint.path) / "manifest.json").exists()
    assert json.loads((space.folder / "runs/walk/job.json").read_text())["name"] == "walk"
    assert not space.kubectl("get", "jobs,pods,services", "-o", "name").strip()


@pytest.mark.timeout(RUN_SECS)
def test_a_fleet_with_tls_trains_and_leaves_no_key_behind(space: Space) -> None:
    job = space.job_file("sealed", tls=True)
    output = space.psfleet("up", job, secs=RUN_SECS)
    assert "status:          done" in output
    assert not space.kubectl("get", "secrets", "-o", "name").strip()
