"""TensorFlow's errors in a worker's session, as psfleet's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from psfleet.errors import LostPeerError, ProgramError, StoreAwayError
from psfleet.tf.error_text import reason
from psfleet.tf.own_session import is_refused
from worker_service.frontends import finite, table_rows

PROGRAM_ERRORS = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.ResourceExhaustedError)
"""Caused by the training program only. All other errors of a run can come from a peer that died or restarted."""


class RefusedCallError(LostPeerError):
    """TensorFlow took a call for a duplicate on one of its tasks; see `psfleet.tf.own_session`.

    The session still works. Other tasks may have run their parts of the call, so that it must not simply be repeated.
    """


class LostConnectionError(LostPeerError):
    """A connection with a ps has ended, or is silent: never the training program's fault."""


class UnreachableError(LostPeerError):
    """The data plane of a ps, or of this worker, does not answer: never the training program's fault."""


NEVER_OF_PROGRAM = (LostConnectionError, StoreAwayError)
"""Losses of which any number in a row says nothing against the training program."""
CONNECTION = "connection with a ps: "
"""Begins what an operation of the step says when a ps has ended such a connection and said why."""
LOST = "lost "
"""Stands before that if it has ended without a word."""
REPLICA = "psfleet_replica_"
"""Followed by the index of its worker: the scope of a replica in the graph of all."""


@contextmanager
def translate_errors(at: str = "", worker: int | None = None) -> Iterator[None]:
    """Raises psfleet's errors in place of TensorFlow's.

    Args:
        at: Begins the message about a tensor that is not finite.
        worker: Begins `at`, unless the tensor belongs to the replica of another worker.
    """
    try:
        yield
    except PROGRAM_ERRORS as error:
        if failure := finite.failure(error.message):
            found = re.search(rf"{REPLICA}(\d+)/", error.message)
            name = "" if worker is None else f"worker {found[1] if found else worker}"
            raise ProgramError(name + at + failure) from error
        if failure := table_rows.failure(error.message):
            raise ProgramError(f"{'' if worker is None else f'worker {worker}'}{at}{failure}") from error
        raise ProgramError(f"the program failed in TensorFlow: {reason(error)}", error.message) from error
    except tf.errors.OpError as error:
        if found := re.search(rf"({LOST})?{CONNECTION}(.*)", error.message):
            raise (LostConnectionError if found[1] else LostPeerError)(found[2]) from error
        kind = RefusedCallError if is_refused(error) else LostPeerError
        if isinstance(error, tf.errors.UnavailableError):
            kind = UnreachableError
        raise kind(f"{type(error).__name__}: {reason(error)}") from error
    except RuntimeError as error:
        # The session was closed by another thread.
        raise LostPeerError(f"the session is closed: {error}") from error


@contextmanager
def translate_local_errors(at: str = "") -> Iterator[None]:
    """As `translate_errors`, for a session without peers: every error is the program's."""
    try:
        with translate_errors(at):
            yield
    except LostPeerError as error:
        raise ProgramError(f"{at}the program failed in TensorFlow: {error}", str(error.__cause__)) from error
