"""Finish reaches every ps, with retries for those that do not answer at once."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control import fleet_client
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import BadJobError, LostPeerError, PsfleetError, ReplacedError

OUTCOME = pb.Outcome(exit_code=0, message="step 9 is saved and verified")


class Ps:
    """A ps whose first `failing_calls` calls fail."""

    def __init__(
        self, host: str, failing_calls: float = 0, error: type[PsfleetError] = LostPeerError, reason: str = "gone"
    ) -> None:
        self.address = Address(host, 2222)
        self.failing_calls = failing_calls
        self.error = error(reason)
        self.calls = 0

    def finish(self, outcome: pb.Outcome) -> None:
        """See PsClient."""
        self.calls += 1
        if self.calls <= self.failing_calls:
            raise self.error


def fleet(*ps: Ps) -> FleetClient:
    """A client of these ps."""
    made = FleetClient([], "run")
    made.ps = list[Any](ps)
    return made


def test_finish_is_retried_where_it_failed_and_nowhere_else() -> None:
    ps = Ps("ps-0"), Ps("ps-1", failing_calls=2), Ps("ps-2")
    assert fleet(*ps).finish(OUTCOME) == 3
    assert [one.calls for one in ps] == [1, 3, 1]


def test_a_ps_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(fleet_client, "FINISH_SECS", 0.3)
    caplog.set_level(logging.WARNING)
    ps = Ps("ps-0", failing_calls=float("inf")), Ps("ps-1")
    assert fleet(*ps).finish(OUTCOME) == 1
    assert ps[1].calls == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        "gave up after 0.3 s waiting for every ps to receive the outcome; last seen: ['ps-0:2223']"
    )


@pytest.mark.parametrize("number", [0, 1])
def test_a_ps_that_refuses_does_not_keep_the_outcome_from_the_others(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    ps = [Ps("ps-0"), Ps("ps-1"), Ps("ps-2")]
    ps[number] = Ps("refuses", float("inf"), BadJobError, "caller's run is 'other'")
    assert fleet(*ps).finish(OUTCOME) == 2
    assert [one.calls for one in ps] == [1, 1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "a ps does not receive the outcome: caller's run is 'other'"
    ]


def test_a_process_that_is_replaced_ends_no_run() -> None:
    """The run continues with the process that has its index now, which the other ps may not know yet."""
    ps = Ps("ps-0", float("inf"), ReplacedError, "worker 1 was replaced"), Ps("ps-1")
    with pytest.raises(ReplacedError, match="worker 1 was replaced"):
        fleet(*ps).finish(OUTCOME)
    assert ps[1].calls == 0


def test_an_outcome_that_a_ps_has_reaches_the_others_also_if_one_knows_a_newer_process() -> None:
    """That ps ends the run: the others must not wait."""
    ps = Ps("ps-0"), Ps("ps-1", float("inf"), ReplacedError, "worker 1 was replaced"), Ps("ps-2")
    with pytest.raises(ReplacedError, match="worker 1 was replaced"):
        fleet(*ps).finish(OUTCOME)
    assert [one.calls for one in ps] == [1, 1, 1]


def test_a_restarted_ps_that_relearns_the_owners_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_client, "FINISH_SECS", 0.5)
    ps = Ps("ps-0", failing_calls=7), Ps("ps-1")
    ps[0].error = LostPeerError("it was restarted", retry_secs=0.7)
    assert fleet(*ps).finish(OUTCOME) == 2
    assert ps[1].calls == 1


@pytest.mark.parametrize("starts_at", [0.0, 0.25, 0.45])
def test_a_ps_that_was_restarted_meanwhile_is_waited_for_until_it_decides(
    monkeypatch: pytest.MonkeyPatch, starts_at: float
) -> None:
    """It says when that is. A ps that misses the outcome would wait for workers for minutes, and end with 75."""
    monkeypatch.setattr(fleet_client, "FINISH_SECS", 0.5)
    ps, began = (Ps("ps-0"), Ps("ps-1")), time.monotonic()
    decides_at = began + starts_at + 0.85

    def finish(outcome: pb.Outcome) -> None:
        now = time.monotonic()
        if now < began + starts_at:
            raise LostPeerError("it starts")
        if now < decides_at:
            raise LostPeerError("it was restarted", retry_secs=decides_at - now)

    ps[0].finish = finish
    assert fleet(*ps).finish(OUTCOME) == 2


def test_ps_0_decides_first_who_may_end_the_run() -> None:
    """It does not answer at first, and the other ps does not know the newer chief yet."""
    ps = Ps("ps-0", float("inf")), Ps("ps-1")

    def finish(outcome: pb.Outcome) -> None:
        ps[0].calls += 1
        raise ReplacedError("replaced") if ps[0].calls > 1 else LostPeerError("it starts")

    ps[0].finish = finish
    with pytest.raises(ReplacedError):
        fleet(*ps).finish(OUTCOME)
    assert ps[1].calls == 0
