"""The order of the calls of one handle, and their end with the program."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.live_chief import live

import psfleet
from psfleet.errors import UsageError
from psfleet.handle.calls import Calls

WAIT_SECS = 30.0
SCRIPT = """
import sys
import psfleet
run = psfleet.attach(sys.argv[1])
future = run.train(5)
later = run.evaluate()
while not future.running():
    pass
print("called", flush=True)
sys.exit(3)
"""


def test_calls_are_made_in_their_order_on_whatever_thread() -> None:
    calls, made, may_end = Calls(), [], threading.Event()

    def first() -> None:
        assert may_end.wait(WAIT_SECS)
        made.append("first")

    calls.later(first)
    second = calls.later(lambda: made.append("second"))
    assert second.cancel()
    third = calls.later(lambda: made.append("third"))
    caller = threading.Thread(target=lambda: calls.now(lambda: made.append("fourth")))
    caller.start()
    assert made == []
    may_end.set()
    third.result(WAIT_SECS)
    caller.join(WAIT_SECS)
    assert made == ["first", "third", "fourth"]


def test_a_call_that_fails_does_not_delay_those_after_it() -> None:
    calls = Calls()
    failed = calls.later(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(WAIT_SECS)
    with pytest.raises(ZeroDivisionError):
        calls.now(lambda: 1 / 0)
    assert calls.now(lambda: 5) == 5


def test_a_call_without_a_thread_does_not_delay_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, may_end = Calls(), threading.Event()
    first = calls.later(lambda: may_end.wait(WAIT_SECS))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            calls.later(lambda: None)
    third = calls.later(first.done)
    may_end.set()
    assert third.result(WAIT_SECS), "it has not waited for the first"


def test_a_signal_handler_cannot_call_in_the_middle_of_a_call() -> None:
    calls = Calls()

    def interrupted() -> None:
        with pytest.raises(UsageError, match="another call is in progress on this thread"):
            calls.now(lambda: None)

    calls.now(interrupted)
    assert calls.now(lambda: 5) == 5


def test_a_checkpoint_is_that_after_the_steps_that_were_asked_for_before(tmp_path: Path) -> None:
    with live(tmp_path / "out", held_at=40) as chief:
        run = psfleet.attach(tmp_path / "out")
        steps = run.train(5)
        saved = run.save()
        assert steps.done(), "the save has not waited"
        assert (steps.result(), chief.step) == (45, 45)
        assert saved.is_dir()


def test_a_program_that_fails_does_not_wait_for_its_calls(tmp_path: Path) -> None:
    with live(tmp_path / "out", held_at=40) as chief:
        chief.moves = False
        script = [sys.executable, "-c", SCRIPT, str(tmp_path / "out")]
        ended = subprocess.run(script, capture_output=True, text=True, timeout=WAIT_SECS)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "called\n", "")
