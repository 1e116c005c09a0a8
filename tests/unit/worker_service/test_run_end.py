"""Which error ends the run of a fleet, and how the ps and the chief learn of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from psfleet.control import control_pb2 as pb
from psfleet.errors import BAD_JOB, ProgramError
from worker_service.run_end import report_failure, worker_error


def test_a_run_that_a_worker_has_ended_ends_with_the_exit_code_of_that_worker() -> None:
    error = worker_error(pb.Outcome(exit_code=BAD_JOB, message="worker 1: another program", details="Traceback"))
    assert (error.exit_code, str(error), error.details) == (BAD_JOB, "worker 1: another program", "Traceback")
    assert error.is_reported


def test_the_ps_are_told_once_and_never_of_an_outcome_that_came_from_them() -> None:
    outcomes: list[pb.Outcome] = []
    fleet: Any = SimpleNamespace(finish=lambda outcome: outcomes.append(outcome) or 2)
    stop: Any = SimpleNamespace(must_leave=lambda index: False)
    error = ProgramError("boom")
    assert [report_failure(fleet, error, 0, stop) for _ in range(2)] == [2, 0]
    assert report_failure(fleet, worker_error(pb.Outcome(exit_code=70, message="of worker 1")), 0, stop) == 0
    assert [outcome.message for outcome in outcomes] == ["boom"]
