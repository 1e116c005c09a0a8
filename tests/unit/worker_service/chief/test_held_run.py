"""What a call for an evaluation of a held run gets."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkpoint_samples import save

from psfleet.errors import UsageError
from psfleet.report.hold import HoldRecord
from worker_service.chief.held_run import HeldRun
from worker_service.chief.operations import CallEndedError


class Errands:
    """Makes each call at once."""

    def submit(self, work: Any) -> Future[Any]:
        result: Future[Any] = Future()
        result.set_result(work())
        return result


def held_run(out: Path, evaluated: dict[str, float] | None) -> HeldRun:
    """One whose recorder returns this."""
    saved = save(out, 40)
    operations: Any = SimpleNamespace(context=None, await_held=lambda is_active: saved, check_active=lambda _: None)
    holding: Any = SimpleNamespace(record=HoldRecord(40))
    recorder: Any = SimpleNamespace(evaluate=lambda step, values, is_over: evaluated, metrics={"old": 1.0})
    errands: Any = Errands()
    return HeldRun(operations, holding, recorder, errands)


def test_it_gets_the_metrics_of_its_own_evaluation(tmp_path: Path) -> None:
    assert held_run(tmp_path, {"accuracy": 0.5}).evaluate(lambda: True) == {"accuracy": 0.5}


def test_a_program_without_evaluation_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the program has no evaluation data"):
        held_run(tmp_path, {}).evaluate(lambda: True)


def test_a_caller_that_has_gone_gets_no_error_about_the_program(tmp_path: Path) -> None:
    with pytest.raises(CallEndedError):
        held_run(tmp_path, None).evaluate(lambda: False)
