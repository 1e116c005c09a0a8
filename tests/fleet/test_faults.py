"""What a fleet does when one of its processes is killed or held in the middle of training."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from support.local_fleet import START_SECS, Fleet, processes, training

from psfleet.report.schema import Event, EventLog

NOTICE_SECS = 5.0
"""Until every worker has noticed that a ps is gone: 0.1 on an idle machine; a keepalive would take 15."""
AHEAD_STEPS = 10
"""More batches than a worker has when its data are held, or pushes for steps that others have made meanwhile."""
BEAT_STEPS = 50
"""Steps that pass, at the pace of these tests, until the chief has surely seen a part and committed it."""
TWICE_SECS = 1.0
"""In which a worker that is back in a step would surely have pushed its gradient again."""


def test_a_killed_ps_costs_the_steps_since_the_last_checkpoint_and_a_chief_in_the_final_evaluation_none(
    tmp_path: Path,
) -> None:
    """One ps is killed before the first checkpoint, the other after it, and the chief when no ps is left."""
    with training(tmp_path, fleet={"ps": 2}, train={"steps": 120}, checkpoint={"every_steps": 40}) as fleet:
        fleet.wait_for_step(10)
        before_any, step = killed_ps(fleet, index=0)
        assert before_any.steps_lost - step in (0, 1), "the ps that lived was a step ahead"
        fleet.wait_for(lambda: fleet.entries("checkpoint"), START_SECS, "a checkpoint")
        after_one, step = killed_ps(fleet, index=1)
        saved = max(entry["step"] for entry in fleet.entries("checkpoint") if entry["time"] < after_one.time)
        assert after_one.steps_lost - (step - saved) in (0, 1), "the ps that lived was a step ahead"
        assert after_one.steps_lost <= 40 + BEAT_STEPS
        resumed = next(entry for entry in fleet.entries("progress") if entry["generation"] == 3)
        assert 0 < saved < resumed["step"] <= saved + BEAT_STEPS
        fleet.gates.hold("evaluation")
        fleet.gates.hurry()
        killed_chief(fleet)
        report = fleet.report()
    assert (report.status, report.final_step, report.generation, report.restarts) == ("done", fleet.steps, 3, 3)
    assert report.events[:2] == [before_any, after_one]
    assert [(event.role, event.kind, event.steps_lost) for event in report.events[2:]] == [("chief", "restarted", 0)]
    assert report.eval.keys() == {"loss"}
    # As the chief that was killed has counted them.
    made = fleet.steps - saved
    assert [(ps.used, ps.dropped) for ps in report.gradients.per_ps] == [(2 * made, 0)] * 2
    assert report.gradients.since_step == saved
    assert f"{2 * made} used, 0 dropped since step {saved}" in fleet.screen.read_text()


def test_a_step_waits_for_a_worker_and_a_killed_worker_and_a_killed_chief_cost_no_step(tmp_path: Path) -> None:
    often, soon = {"every_steps": 10, "keep": 2}, {"slow_secs": 0.5}
    with training(tmp_path, train={"steps": 80}, checkpoint=often, deadlines=soon) as fleet:
        fleet.wait_for_step(10)
        fleet.gates.hold(0)
        slow = fleet.wait_for(lambda: slow_step(fleet, "worker 0"), START_SECS, "a step that waits for worker 0")
        assert slow["secs"] >= 0.5
        assert fleet.step() <= slow["step"]
        # Worker 1 has pushed its gradient of that step.
        fleet.kill("worker", 1)
        waited = fleet.wait_for(lambda: waiting_secs(fleet, back=1), START_SECS, "worker 1 to be in that step again")
        enough = waited + TWICE_SECS
        fleet.wait_for(lambda: waiting_secs(fleet, back=1) > enough, START_SECS, "a gradient that might come twice")
        fleet.gates.release(0)
        fleet.wait_for_step(fleet.step() + 10)
        fleet.kill("worker", 0)
        fleet.wait_for(lambda: fleet.has_restarted("chief"), START_SECS, "the chief to join again")
        fleet.gates.hurry()
        report = fleet.done()
        assert report.generation == 1
        assert [(event.role, event.index, event.kind, event.steps_lost) for event in report.events] == [
            ("worker", 1, "restarted", 0),
            ("chief", 0, "restarted", 0),
        ]
        assert all("SIGKILL" in event.cause for event in report.events)
        assert report.restarts == 2
        steps = fleet.entries("progress")
        assert report.seconds > steps[-1]["time"] - steps[0]["time"], "of the chief that was killed, too"
        used = {index: gradients.used for index, gradients in report.gradients.per_worker.items()}
        assert used == {"0": fleet.steps, "1": fleet.steps}, "each step is made of one gradient of each worker"
        assert report.gradients.dropped <= 1, "the gradient that the chief had under way may be pushed twice"


def test_in_async_mode_a_killed_worker_costs_no_step_and_every_push_wakes_its_worker(tmp_path: Path) -> None:
    with training(tmp_path, update={"mode": "async"}, train={"steps": 200}) as fleet:
        fleet.wait_for_step(20)
        fleet.kill("worker", 1)
        # The chief alone must not reach the final step before worker 1 is back.
        fleet.wait_for_step(fleet.step() + 10)
        fleet.gates.hold(0)
        fleet.wait_for(lambda: fleet.has_restarted("worker"), START_SECS, "worker 1 to join again")
        fleet.gates.release(0)
        fleet.gates.hurry()
        gradients = fleet.done().gradients
        assert gradients.used == fleet.steps
        assert gradients.pushed == gradients.used + gradients.dropped
        assert not [*fleet.entries("lost_peer"), *fleet.entries("lost_peer", index=1)]


def test_nothing_outlives_a_launcher_that_is_killed_while_its_fleet_starts(tmp_path: Path) -> None:
    """One that is killed in training is in test_ports.py."""
    with training(tmp_path, fleet={"workers": 1}) as fleet:
        fleet.wait_for(lambda: len(processes(fleet.out)) == 2, START_SECS, "two processes")
        fleet.launcher.send_signal(signal.SIGKILL)
        fleet.wait_for(lambda: not processes(fleet.out), START_SECS, "the processes of a dead launcher to end")


def test_with_a_spare_no_step_waits_for_a_worker_that_is_held(tmp_path: Path) -> None:
    one_epoch = {"fleet": {"ps": 2, "spares": 1}, "train": {"steps": 120}, "options": {"epoch_steps": 120}}
    with training(tmp_path, hold=2, **one_epoch) as fleet:
        fleet.wait_for_step(15)
        swap(fleet, free=2, held=1)
        fleet.wait_for_step(fleet.step() + 25)
        swap(fleet, free=1, held=2)
        fleet.wait_for_step(fleet.step() + 25)
        fleet.gates.hurry()
        gradients = fleet.done().gradients
        for ps in gradients.per_ps:
            assert ps.used == 2 * fleet.steps
            assert ps.pushed == ps.used + ps.dropped
        pushed = {index: worker.pushed for index, worker in gradients.per_worker.items()}
        assert pushed.keys() == {"0", "1", "2"}
        assert gradients.pushed == sum(pushed.values())
        assert gradients.used == sum(worker.used for worker in gradients.per_worker.values())
        assert 15 + 25 - AHEAD_STEPS < pushed["1"] < fleet.steps - 25 + AHEAD_STEPS
        assert 25 - AHEAD_STEPS < pushed["2"] < fleet.steps - 15 - 25 + AHEAD_STEPS
        assert not fleet.entries("lost_peer")


def test_with_a_spare_a_worker_abandons_a_step_that_the_others_have_completed(tmp_path: Path) -> None:
    """Worker 1 trains alone at first; then its gradient is held, and the chief completes the step."""
    options = {"holds_gradients": True, "epoch_steps": 20_000}
    held = {"fleet": {"workers": 1, "spares": 1}, "train": {"steps": 20_000}, "options": options}
    with training(tmp_path, step_secs=0.0, hold=0, **held) as fleet:
        fleet.wait_for(lambda: newest_step(fleet, 1) > 10, START_SECS, "worker 1 to train alone")
        fleet.gates.hold("gradient-1")
        looked, begun = (fleet.gates.folder / f"{what}-hold-gradient-1" for what in ("looked-at", "begun"))
        fleet.wait_for(looked.exists, START_SECS, "worker 1 to begin a step that is held")
        before = begun.stat().st_size
        fleet.gates.release(0)
        fleet.wait_for(lambda: begun.stat().st_size > before, START_SECS, "worker 1 to abandon it and begin another")
        fleet.gates.release("gradient-1")
        fleet.wait_for_step(fleet.step() + 60)
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end() == 130
        assert fleet.report().gradients.per_worker["0"].pushed > 10
        assert not fleet.entries("lost_peer", index=1)


def newest_step(fleet: Fleet, index: int) -> int:
    """The step of a worker's parameters, as the chief has logged it; 0 before the first."""
    tables = [entry["workers"] for entry in fleet.entries("fleet")]
    return max((row["step"] for table in tables for row in table if row["index"] == index), default=0)


def swap(fleet: Fleet, free: int, held: int) -> None:
    """Releases the data of one shard, and holds those of another."""
    fleet.gates.release(free)
    fleet.gates.hold(held)


def slow_step(fleet: Fleet, who: str) -> dict[str, Any] | None:
    """The log entry of ps 0 about a step behind the 10th that waits for one worker."""
    found = [entry for entry in fleet.entries("slow_step", "ps") if entry["step"] >= 10]
    return next((entry for entry in found if entry["message"] == f"step {entry['step']} waits for {who}"), None)


def killed_ps(fleet: Fleet, index: int) -> tuple[Event, int]:
    """Kills a ps and waits until the fleet trains again; its event, and the step at which the chief lost the ps.

    Checks what holds at any time.
    """
    losses = [partial(fleet.entries, "lost_peer", index=worker) for worker in (0, 1)]
    seen = [len(of_worker()) for of_worker in losses]
    events = EventLog(fleet.out / EventLog.FILE_NAME)
    before, generation = len(events.read()), fleet.entries("progress")[-1]["generation"]
    killed = fleet.kill("ps", index)
    for worker, of_worker in enumerate(losses):
        fleet.wait_for(partial(has_more, of_worker, seen[worker]), START_SECS, f"worker {worker} to notice")
        first = of_worker()[seen[worker]]
        assert first["time"] - killed < NOTICE_SECS, f"worker {worker} noticed after {first['time'] - killed:.2f} s"
        assert "===" not in first["message"], "the reason, not the frame that TensorFlow draws around it"
    fleet.wait_for(
        lambda: fleet.entries("progress")[-1]["generation"] > generation, START_SECS, "a step of the next generation"
    )
    [event] = events.read()[before:]
    assert (event.role, event.index, event.kind) == ("ps", index, "restarted")
    assert "SIGKILL" in event.cause
    return event, losses[0]()[seen[0]]["step"]


def has_more(entries: Callable[[], list[dict[str, Any]]], count: int) -> bool:
    """Whether there are more entries than so many."""
    return len(entries()) > count


def killed_chief(fleet: Fleet) -> None:
    """Kills the chief in the final evaluation, which is held; waits for the end of the run."""
    fleet.wait_for(lambda: fleet.entries("verified"), START_SECS, "the final step to be saved and verified")
    fleet.wait_for(lambda: fleet.pid("ps", 0) is None, START_SECS, "the ps to end")
    fleet.kill("worker", 0)
    fleet.wait_for(lambda: len(fleet.entries("verified")) > 1, START_SECS, "the next chief to find that it is saved")
    fleet.gates.release("evaluation")
    assert fleet.end() == 0, fleet.tails()


def waiting_secs(fleet: Fleet, back: int) -> float:
    """How long the present step has lasted; 0 until ps 0 has seen a worker join again and resume at that step."""
    found = [
        shard.waiting_secs
        for shard in fleet.shards()[:1]
        for state in shard.workers
        if (state.index, state.joins, state.step) == (back, 2, shard.step)
    ]
    return max(found, default=0.0)
