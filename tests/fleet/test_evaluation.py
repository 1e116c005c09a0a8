"""A fleet without a spare trains on while its chief evaluates."""

from __future__ import annotations

from pathlib import Path

from support.local_fleet import START_SECS, training


def test_an_evaluation_that_is_held_does_not_stop_the_fleet(tmp_path: Path) -> None:
    """It ends many steps later, with the metrics of its own step, and those that were due meanwhile follow."""
    with training(tmp_path, train={"steps": 120}, evaluate={"every_steps": 10}) as fleet:
        fleet.wait_for_step(1)
        fleet.gates.hold("evaluation")
        fleet.wait_for_step(fleet.step() + 30)
        before = len(fleet.entries("evaluation"))
        fleet.gates.release("evaluation")
        fleet.wait_for(lambda: len(fleet.entries("evaluation")) > before, START_SECS, "the evaluation")
        fleet.gates.hurry()
        report = fleet.done()
        held = fleet.entries("evaluation")[before]
        assert held["step"] % 10 == 0
        assert held["step"] + 20 < max(entry["step"] for entry in fleet.entries("progress"))
        assert [entry["step"] for entry in fleet.entries("evaluation")] == list(range(10, 121, 10))
        assert report.eval["loss"] == fleet.entries("evaluation")[-1]["metrics"]["loss"]
        assert fleet.entries("evaluation")[-1]["step"] == 120
