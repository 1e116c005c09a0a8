"""Opens sessions within a deadline."""

from __future__ import annotations

import threading
from contextlib import suppress

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.polling import run_within


def open_within(secs: float, session: v1.Session, operation: tf.Operation) -> None:
    """Opens a session by running an operation, which waits for all tasks of its ClusterSpec.

    Not by `Session.list_devices`, which keeps the interpreter's lock meanwhile, so that no other thread runs.

    Args:
        operation: Does nothing, on the session's own task.

    Raises:
        TimeoutError: A task is absent or frozen. The session is closed when it is there.
        tf.errors.OpError: The session is refused.
    """
    try:
        run_within(secs, lambda: session.run(operation))
    except BaseException:
        # On a thread: closing waits for the tasks, too.
        threading.Thread(target=_close, args=[session], name="close-session", daemon=True).start()
        raise


def _close(session: v1.Session) -> None:
    with suppress(tf.errors.OpError):
        session.close()
