"""A program that changes under a running fleet is refused; a run that was stopped may be resumed with another one."""

from __future__ import annotations

from pathlib import Path

from support.local_fleet import PROGRAM, START_SECS, training

from psfleet import errors


def test_a_worker_with_a_changed_program_ends_the_run_which_then_resumes_with_it(tmp_path: Path) -> None:
    with training(tmp_path, train={"steps": 2000}, checkpoint={"every_steps": 10}) as fleet:
        fleet.wait_for(lambda: fleet.entries("checkpoint"), START_SECS, "a checkpoint")
        with (tmp_path / PROGRAM.name).open("a") as file:
            file.write("# changed\n")
        fleet.kill("worker", 1)
        assert fleet.end() == errors.BAD_JOB, fleet.tails()
        report = fleet.report()
        assert report.error is not None
        assert f"{PROGRAM.name} differs" in report.error
        [failed] = fleet.entries("failed", index=1)
        assert failed["exit_code"] == errors.BAD_JOB
        saved = fleet.checkpoint().step
    programs = ("mortal_program", PROGRAM.stem)
    with training(tmp_path, programs=programs, train={"steps": saved + 20}) as fleet:
        fleet.gates.hurry()
        event = fleet.wait_for(lambda: fleet.entries("program_changed"), START_SECS, "the event")[0]
        assert f"step {saved} was trained by a program with digest" in event["message"]
        report = fleet.done()
        assert [event.kind for event in report.events] == ["program_changed"]
