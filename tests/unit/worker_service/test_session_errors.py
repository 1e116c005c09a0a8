"""Errors of a session without peers are the program's, whatever TensorFlow calls them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from psfleet.errors import LostPeerError, ProgramError
from worker_service.session_errors import LostConnectionError, translate_errors, translate_local_errors


@pytest.mark.parametrize("kind", [tf.errors.UnknownError, tf.errors.InternalError, tf.errors.InvalidArgumentError])
def test_an_error_of_a_session_without_peers_is_the_programs(kind: type[tf.errors.OpError]) -> None:
    with pytest.raises(ProgramError, match="SystemExit: 70"), translate_local_errors("step 2: "):
        raise kind(None, None, "SystemExit: 70")


def test_a_connection_that_is_lost_is_said_without_the_traceback_of_the_operation() -> None:
    message = "LostPeerError: lost connection with a ps: ps 0: restored\nTraceback (most recent call last):\n\n  File x"
    with pytest.raises(LostConnectionError, match=r"^ps 0: restored$"), translate_errors():
        raise tf.errors.UnknownError(None, None, message)


def test_an_error_that_a_ps_has_told_may_be_the_programs() -> None:
    """If it comes again and again: a connection that has ended without a word never is."""
    message = "LostPeerError: connection with a ps: ps 0: InternalError: boom\nTraceback"
    with pytest.raises(LostPeerError, match=r"^ps 0: InternalError: boom$") as caught, translate_errors():
        raise tf.errors.UnknownError(None, None, message)
    assert not isinstance(caught.value, LostConnectionError)


def test_an_unknown_error_of_a_run_may_be_a_lost_peer() -> None:
    with pytest.raises(LostPeerError, match="SystemExit: 70"), translate_errors():
        raise tf.errors.UnknownError(None, None, "SystemExit: 70")
