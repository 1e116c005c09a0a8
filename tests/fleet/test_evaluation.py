"""A fleet whose chief is its only worker trains on while it evaluates, and stops although an evaluation never ends."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.local_fleet import END_SECS, START_SECS, training

from psfleet import errors


@pytest.mark.extended
def test_an_evaluation_that_is_held_does_not_stop_the_fleet(tmp_path: Path) -> None:
    """It ends many steps later, with the metrics of its own step, and those that were due meanwhile follow.

    The job's callback receives all of them.
    """
    sections: dict[str, Any] = {
        "fleet": {"workers": 1},
        "train": {"steps": 120},
        "evaluate": {"every_steps": 10},
        "checkpoint": {"every_steps": 60},
        "callbacks": ["recording_callback:Recording"],
    }
    with training(tmp_path, programs=("paced_program", "recording_callback"), **sections) as fleet:
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
        assert report.events == []
        calls = next(fleet.out.glob("callbacks/*/calls")).read_text().splitlines()
        assert calls[0] == "start paced 0"
        assert [call for call in calls if "evaluate" in call] == [
            f"evaluate {at} ['loss']" for at in range(10, 121, 10)
        ]
        assert [call for call in calls if "checkpoint" in call] == [
            f"checkpoint {at:d} {at:08d}-g1" for at in (60, 120)
        ]
        assert calls[-1] == "end done 120"


def test_a_signal_ends_a_final_evaluation_that_never_ends(tmp_path: Path) -> None:
    """The run is done, because its last step is saved and verified."""
    sections: dict[str, Any] = {"fleet": {"workers": 1}, "train": {"steps": 30}, "deadlines": {"stop_secs": START_SECS}}
    with training(tmp_path, **sections) as fleet:
        fleet.wait_for_step(1)
        fleet.gates.hold("evaluation")
        fleet.wait_for(lambda: fleet.pid("ps", 0) is None and fleet.entries("verified"), START_SECS, "the ps to end")
        fleet.launcher.send_signal(signal.SIGTERM)
        assert fleet.end(END_SECS) == errors.DONE, fleet.tails()
        report = fleet.report()
        assert (report.status, report.final_step, report.eval) == ("done", fleet.steps, {})
        assert [event.cause for event in report.events] == ["not evaluated in time: step 30, stopped by SIGTERM"]
