"""Waiting with a deadline, in virtual time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from psfleet import polling
from psfleet.errors import DeadlineError, TemporaryError
from psfleet.polling import run_within, wait_until


class Clock:
    """Replaces the `time` module of `psfleet.polling`: only `sleep` advances the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, secs: float) -> None:
        self.now += secs
        self.pauses.append(secs)

    def at(self, secs: float) -> Callable[[], float | None]:
        """A probe that sees the time from `secs` on and None before."""
        return lambda: self.now if self.now >= secs else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "time", clock)
    return clock


def test_what_is_there_is_returned_without_a_pause(clock: Clock) -> None:
    assert wait_until(lambda: "here", 0.0, "nothing") == "here"
    assert clock.pauses == []


def test_the_first_value_that_is_true_is_returned(clock: Clock) -> None:
    assert wait_until(clock.at(1.0), 5.0, "one o'clock", poll_secs=0.25) == 1.0
    assert clock.pauses == [0.25] * 4


def test_done_says_which_value_is_the_one(clock: Clock) -> None:
    seen = wait_until(lambda: clock.now, 5.0, "two", done=lambda now: now >= 2.0, poll_secs=1.0)
    assert seen == 2.0


def test_a_false_value_can_be_the_one(clock: Clock) -> None:
    assert wait_until(lambda: 0, 5.0, "nought", done=lambda seen: seen == 0) == 0


def test_the_deadline_names_what_was_waited_for_and_what_was_last_seen(clock: Clock) -> None:
    with pytest.raises(DeadlineError) as caught:
        wait_until(lambda: [clock.now], 2.5, "a miracle", done=lambda _: False, poll_secs=1.0)
    assert str(caught.value) == "gave up after 2.5 s waiting for a miracle; last seen: [2.5]"
    assert (caught.value.what, caught.value.timeout_secs, caught.value.last_seen) == ("a miracle", 2.5, [2.5])
    assert isinstance(caught.value, TemporaryError)
    assert caught.value.exit_code == 75


def test_nothing_seen_is_not_mentioned(clock: Clock) -> None:
    with pytest.raises(DeadlineError, match=r"^gave up after 1 s waiting for somebody$"):
        wait_until(lambda: None, 1, "somebody")


def test_the_last_look_is_at_the_deadline_and_no_pause_goes_beyond_it(clock: Clock) -> None:
    assert wait_until(clock.at(2.5), 2.5, "the end", poll_secs=1.0) == 2.5
    assert clock.pauses == [1.0, 1.0, 0.5]


def test_a_wait_without_time_looks_once(clock: Clock) -> None:
    looks = iter(range(9))
    with pytest.raises(DeadlineError, match="last seen: 0"):
        wait_until(lambda: next(looks), 0.0, "nothing", done=lambda _: False)
    assert next(looks) == 1


def test_an_error_of_the_probe_ends_the_wait(clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, 5.0, "infinity")


def test_the_deadline_holds_in_real_time() -> None:
    with pytest.raises(DeadlineError, match=r"gave up after 0\.02 s"):
        wait_until(lambda: False, 0.02, "the end", poll_secs=0.01)


def test_a_call_that_returns_in_time_gives_its_result_or_its_error() -> None:
    assert run_within(30.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_within(30.0, lambda: 1 / 0)
    with pytest.raises(SystemExit):
        run_within(1.0, sys.exit)


def test_a_call_that_does_not_return_in_time_is_abandoned() -> None:
    gate = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            run_within(0.01, lambda: gate.wait(30.0))
    finally:
        gate.set()
