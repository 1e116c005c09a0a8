"""Which errors of a worker end the run, and which end only its process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.errors import DataStallError, DeadlineError, LostPeerError, ProgramError, PsfleetError
from worker_service import service


def data_stall(ends_run: bool) -> DataStallError:
    error = DataStallError("the data set of worker 0 to give batch 7", 600)
    error.ends_run = ends_run
    return error


CASES = [
    (data_stall(ends_run=True), 0, True),
    (data_stall(ends_run=True), 1, True),
    (data_stall(ends_run=False), 0, False),
    (data_stall(ends_run=False), 1, False),
    (ProgramError("boom"), 1, True),
    (DeadlineError("a step", 600), 0, True),
    (DeadlineError("a step", 600), 1, False),
    (LostPeerError("gone"), 0, True),
]


class Ends:
    """What a process of a worker does as it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: PsfleetError, index: int) -> None:
        self.outcomes: list[pb.Outcome] = []
        self.reports: list[Any] = []
        stop: Any = SimpleNamespace(must_leave=lambda index: False)
        fleet: Any = SimpleNamespace(finish=self.outcomes.append, describe=lambda: [None])
        self.process: Any = SimpleNamespace(
            fleet=fleet, stop=stop, heartbeat=None, progress=None, settings=None, metrics=SimpleNamespace(add_chief=id)
        )
        self.context: Any = SimpleNamespace(fleet=fleet, incarnation=1, out=Path("out"))

        def run() -> pb.Outcome:
            raise error

        chief = SimpleNamespace(error=None, run=run, report=lambda error: error)
        components = SimpleNamespace(recorder=SimpleNamespace(close=lambda: None))
        monkeypatch.setattr(service, "Chief", lambda *args: chief)
        monkeypatch.setattr(service, "_chief_components", lambda *args: components)
        monkeypatch.setattr("worker_service.service.html.publish", lambda report, out: self.reports.append(report))
        service._report_failure(fleet, error, index, stop)


@pytest.mark.parametrize(("error", "index", "ends_run"), CASES)
def test_a_worker_that_the_fleet_trains_without_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, error: PsfleetError, index: int, ends_run: bool
) -> None:
    assert [outcome.message for outcome in Ends(monkeypatch, error, index).outcomes] == [str(error)] * ends_run


@pytest.mark.parametrize(("error", "index", "ends_run"), [case for case in CASES if case[1] == 0])
def test_a_chief_that_the_fleet_trains_without_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, error: PsfleetError, index: int, ends_run: bool
) -> None:
    ends = Ends(monkeypatch, error, index)
    nothing: Any = None
    with pytest.raises(type(error)):
        service._lead(ends.process, ends.context, nothing, nothing)
    assert ends.reports == [error] * ends_run
