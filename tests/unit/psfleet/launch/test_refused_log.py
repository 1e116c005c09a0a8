"""A log that its platform refuses to give while it is read on a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.scripted_platform import ScriptedPlatform, log, member

from psfleet.errors import UsageError
from psfleet.launch.log_reader import Tail
from psfleet.launch.platform import Member
from psfleet.polling import wait_until

WAIT_SECS = 10.0


class Refusing(ScriptedPlatform):
    """Refuses to give the rest of a log, for example because a token has expired."""

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `Platform`."""
        yield from super().log(member, since, follow, tail)
        raise UsageError("Kubernetes refuses to list the parts of fleets: Unauthorized")


def test_a_log_that_its_platform_refuses_to_give_ends_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    tail = Tail(Refusing([], logs={"chief": log({"step": 1})}))
    before = set(threading.enumerate())
    tail.follow(member("chief"))
    wait_until(lambda: set(threading.enumerate()) <= before, WAIT_SECS, "the end of the thread that reads the log")
    assert len(tail.lines()) == 1
    assert tail.is_over
    assert raised == []
    assert "the log of chief cannot be read: Kubernetes refuses" in caplog.text
