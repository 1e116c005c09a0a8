"""The end of a client's process whose sessions are still being closed."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.tf.client import session

SLOWEST_SEEN_SECS = 26.5
"""Time that TensorFlow took to close a session after a ps was killed."""


class Closing:
    """Stands for a thread that closes a session; it ends if it is waited for long enough."""

    def __init__(self) -> None:
        self.has_ended = False

    def join(self, timeout: float) -> None:
        """See threading.Thread."""
        self.has_ended = timeout > SLOWEST_SEEN_SECS


def test_a_process_ends_after_the_closing_of_a_session_whose_ps_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread = Closing()
    threads: Any = {thread}
    monkeypatch.setattr(session, "_closing", threads)
    session._close_all()
    assert thread.has_ended
