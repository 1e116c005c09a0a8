"""What a fleet does when one of its processes is killed or held in the middle of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import START_SECS, Fleet, processes, training

from psfleet.report import Event, Report

NOTICE_SECS = 2.0
"""In which every worker notices that a ps is gone: what issue 3 promises."""
BEAT_STEPS = 75
"""Steps that pass, at the pace of these tests, until the chief has surely seen a part and committed it."""
DIE_SECS = 10.0
"""Until the children of a killed launcher are gone; those that are still importing TensorFlow notice last."""


def test_a_killed_ps_costs_the_steps_since_the_last_checkpoint(tmp_path: Path) -> None:
    with training(tmp_path, fleet={"ps": 2}, train={"steps": 600}, checkpoint={"every_steps": 25, "keep": 2}) as fleet:
        fleet.wait_for(lambda: len(fleet.entries("checkpoint")) >= 2, START_SECS, "two checkpoints")
        report, event = killed_ps(fleet, index=1)
        saved = [entry["step"] for entry in fleet.entries("checkpoint") if entry["time"] < event.time]
        assert event.steps_lost == last_step_before(fleet, event) - saved[-1]
        assert event.steps_lost <= 25 + BEAT_STEPS
        resumed = next(entry for entry in fleet.entries("progress") if entry["generation"] == 2)
        assert saved[-1] < resumed["step"] <= saved[-1] + BEAT_STEPS
        made = fleet.steps - saved[-1]
        assert [(ps.used, ps.dropped) for ps in report.gradients.per_ps] == [(2 * made, 0)] * 2


def test_a_ps_that_is_killed_before_the_first_checkpoint_costs_all_steps(tmp_path: Path) -> None:
    with training(tmp_path, train={"steps": 300}) as fleet:
        fleet.wait_for_step(20)
        report, event = killed_ps(fleet, index=0)
        assert event.steps_lost == last_step_before(fleet, event) > 0
        assert report.gradients.used == 2 * fleet.steps


def test_a_killed_worker_and_a_killed_chief_cost_no_step(tmp_path: Path) -> None:
    with training(tmp_path, train={"steps": 1500}, checkpoint={"every_steps": 20, "keep": 2}) as fleet:
        for index, role in ((1, "worker"), (0, "chief")):
            fleet.wait_for_step(fleet.last_step() + 50)
            fleet.kill("worker", index)
            fleet.wait_for(lambda role=role: restarts(fleet, role), START_SECS, f"the {role} to join again")
        fleet.wait_for_step(fleet.last_step() + 50)
        fleet.gates.hurry()
        report = fleet.done()
        assert report.generation == 1
        assert [(event.role, event.index, event.kind, event.steps_lost) for event in report.events] == [
            ("worker", 1, "restarted", 0),
            ("chief", 0, "restarted", 0),
        ]
        assert all("SIGKILL" in event.cause for event in report.events)
        assert report.restarts == 2
        used = {index: gradients.used for index, gradients in report.gradients.per_worker.items()}
        assert used == {"0": fleet.steps, "1": fleet.steps}, "each step is made of one gradient of each worker"
        assert report.gradients.dropped <= 2, "no more than the gradient that each had under way is pushed twice"


@pytest.mark.parametrize("moment", ["at the start", "in training"])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, moment: str) -> None:
    with training(tmp_path) as fleet:
        if moment == "in training":
            fleet.wait_for_step(1)
        else:
            fleet.wait_for(lambda: len(processes(fleet.out)) == 3, START_SECS, "three processes")
        fleet.launcher.kill()
        fleet.wait_for(lambda: not processes(fleet.out), DIE_SECS, "the processes of a dead launcher to end")


def test_with_a_spare_no_step_waits_for_a_worker_that_is_held(tmp_path: Path) -> None:
    with training(tmp_path, fleet={"ps": 2, "spares": 1}, train={"steps": 400}) as fleet:
        fleet.wait_for_step(20)
        fleet.gates.hold(1)
        fleet.wait_for_step(fleet.last_step() + 100)
        fleet.gates.release(1)
        fleet.wait_for_step(fleet.last_step() + 50)
        fleet.gates.hold(1)
        fleet.gates.hurry()
        gradients = fleet.done().gradients
        for ps in gradients.per_ps:
            assert ps.used == 2 * fleet.steps
            assert ps.pushed == ps.used + ps.dropped
        workers = gradients.per_worker
        assert gradients.pushed == sum(worker.pushed for worker in workers.values())
        assert gradients.used == sum(worker.used for worker in workers.values())
        assert set(workers) == {"0", "1", "2"}
        assert 20 < workers["1"].pushed < fleet.steps - 100
        assert not fleet.entries("lost_peer")


def test_without_a_spare_a_step_waits_and_the_log_says_for_whom(tmp_path: Path) -> None:
    with training(tmp_path, train={"steps": 200}, deadlines={"slow_secs": 0.5}) as fleet:
        fleet.wait_for_step(20)
        already = len(fleet.entries("slow_step", "ps"))
        fleet.gates.hold(1)
        fleet.wait_for(lambda: len(fleet.entries("slow_step", "ps")) > already, START_SECS, "a step that is slow")
        slow = fleet.entries("slow_step", "ps")[-1]
        assert slow["message"] == f"step {slow['step']} waits for worker 1"
        assert slow["secs"] >= 0.5
        fleet.gates.release(1)
        fleet.gates.hurry()
        report = fleet.done()
        assert (report.gradients.used, report.gradients.dropped) == (2 * fleet.steps, 0)


def killed_ps(fleet: Fleet, index: int) -> tuple[Report, Event]:
    """Kills a ps, waits for the end of the run, and checks what holds whenever this happens; the report and the event."""
    killed = fleet.kill("ps", index)
    for worker in range(2):
        fleet.wait_for(lambda at=worker: fleet.entries("lost_peer", index=at), START_SECS, f"worker {worker} to notice")
        noticed = fleet.entries("lost_peer", index=worker)[0]["time"]
        assert noticed - killed < NOTICE_SECS, f"worker {worker} noticed after {noticed - killed:.2f} s"
    fleet.wait_for(lambda: fleet.entries("restarted"), START_SECS, "the ps to come back")
    fleet.gates.hurry()
    report = fleet.done()
    assert (report.restarts, report.generation, len(report.events)) == (1, 2, 1)
    event = report.events[0]
    assert (event.role, event.index, event.kind) == ("ps", index, "restarted")
    assert "SIGKILL" in event.cause
    return report, event


def last_step_before(fleet: Fleet, event: Event) -> int:
    """The last step that was made before a ps came back: the one that the chief was in, or had just left."""
    inside = next(entry["step"] for entry in fleet.entries("lost_peer"))
    told = max(entry["step"] for entry in fleet.entries("progress") if entry["time"] < event.time)
    return max(inside, told)


def restarts(fleet: Fleet, role: str) -> bool:
    """Whether the chief has noted that a process of this role joined again."""
    return any(entry["message"].startswith(f"{role} ") for entry in fleet.entries("restarted"))
