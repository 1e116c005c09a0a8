"""A client's session with tasks of a standing fleet, whose errors say which task has gone away."""

from __future__ import annotations

import atexit
import secrets
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.control.attendance import Attendance, FleetTask, SecuredClient
from psfleet.errors import LostPeerError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.polling import run_within
from psfleet.tf.error_text import reason
from psfleet.tf.opening import open_within
from psfleet.tf.server import session_config

CLOSE_SECS = 2.0
EXIT_SECS = 60.0
"""How long the end of this process may take for sessions that are still being closed. 26.5 s was seen after a ps was
killed; with one that stays away, closing takes longer than this. `os._exit` would end the process at once, but needs
the program's exit code, which is not known here."""
NOTICE_SECS = 1.0
"""How long after TensorFlow the control plane may notice the end of a task."""
OF_A_LOSS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.NotFoundError,
    tf.errors.UnknownError,
)
"""Errors that a task which died or was started again can cause, and the client's own graph, too."""


class FleetSession(v1.Session):
    """A `tf.compat.v1.Session` on tasks of a standing fleet and this client; made by `open_session`.

    Its calls raise `LostPeerError` once a task has gone away, and TensorFlow's own errors for everything else.
    """

    def __init__(self, target: str, graph: tf.Graph, config: v1.ConfigProto, fleet: str, attends: Attendance) -> None:
        self._fleet_name = fleet
        self._attends = attends
        super().__init__(target, graph=graph, config=config)
        _open.add(self)

    @property
    def is_lost(self) -> bool:
        """Whether a task of the session has gone away."""
        return bool(self._attends.lost())

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """See tf.compat.v1.Session.

        Raises:
            LostPeerError: A task of the fleet has gone away.
        """
        with self._losses():
            return super().run(*args, **kwargs)

    def make_callable(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """See tf.compat.v1.Session; the callable raises as `run` does."""
        call = super().make_callable(*args, **kwargs)

        def translated(*values: Any, **options: Any) -> Any:
            with self._losses():
                return call(*values, **options)

        return translated

    def close(self) -> None:
        """Closes the session; the fleet drops what this process cannot close because a task has gone away."""
        if sys.is_finalizing():
            # No thread can be started any more; `_close_all` has closed what was open.
            return
        try:
            run_within(CLOSE_SECS, partial(_run_recorded, super().close))
        except TimeoutError:
            pass
        except RuntimeError:
            # Python 3.12 starts no thread while it runs what `atexit` has registered.
            if not self.is_lost:
                super().close()
        self._attends.close()

    @contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.UnavailableError as error:
            raise self._loss(self._attends.lost(NOTICE_SECS), reason(error)) from error
        except OF_A_LOSS as error:
            if lost := self._attends.lost():
                raise self._loss(lost, reason(error)) from error
            raise

    def _loss(self, lost: Sequence[str], details: str) -> LostPeerError:
        who = ", ".join(lost) or "a process"
        return LostPeerError(
            f"{who} of fleet {self._fleet_name} has gone away, and what was kept there is lost; a new session can be "
            f"opened once it is back ({details})"
        )


_open: WeakSet[FleetSession] = WeakSet()
_closing: set[threading.Thread] = set()
"""Threads that close sessions, abandoned ones included."""


def _run_recorded(close: Callable[[], None]) -> None:
    _closing.add(threading.current_thread())
    try:
        close()
    finally:
        _closing.discard(threading.current_thread())


@atexit.register
def _close_all() -> None:
    """Closes the sessions while threads still run: TensorFlow's own closing of a forgotten one could block for ever."""
    for session in list(_open):
        session.close()
    # A thread that returns from TensorFlow while Python ends aborts the process, and its exit code is lost.
    deadline = time.monotonic() + EXIT_SECS
    for thread in list(_closing):
        thread.join(max(0.0, deadline - time.monotonic()))


def open_session(
    access: FleetAccess,
    tasks: Sequence[FleetTask],
    own: Address,
    graph: tf.Graph,
    config: v1.ConfigProto | None,
    client: SecuredClient | None = None,
) -> FleetSession:
    """Opens a session whose ClusterSpec has the tasks, and this client under a job name of its own.

    Sessions of one job name evict each other, and one that needs an absent task blocks for minutes (`docs/traps.md`).

    Args:
        tasks: Of the fleet.
        own: Address of this process's TensorFlow server.
        config: Options; None: those of the fleet's `device` section.
        client: With TLS, this client.

    Raises:
        LostPeerError: A task does not answer; names it.
        BadJobError: A task refuses this client; see `Attendance`.
        UsageError: `config` has a ClusterSpec.
    """
    if config is not None and config.cluster_def.job:
        raise UsageError("config has a cluster_def, expected none: psfleet adds that of the fleet")
    job = f"client_{secrets.token_hex(8)}"
    attends = Attendance(access.id, tasks, job, client)
    attends.await_tasks()
    target, merged, secs = f"grpc://{own.data}", _config(access, tasks, own, job, config), access.deadlines.step_secs
    deadline = time.monotonic() + secs
    try:
        _await_servers(target, merged, job, secs)
        session = FleetSession(target, graph, merged, access.name, attends)
        # It opens the session, and adds nothing to the graph.
        run_within(deadline - time.monotonic(), session.list_devices)
    except TimeoutError as error:
        attends.close()
        raise LostPeerError(f"no session with fleet {access.name} within deadlines.step_secs = {secs:g} s") from error
    except tf.errors.OpError as error:
        attends.close()
        raise LostPeerError(f"no session with fleet {access.name}: {reason(error)}") from error
    return session


def _await_servers(target: str, config: v1.ConfigProto, job: str, timeout_secs: float) -> None:
    """Waits for the TensorFlow servers of all tasks, by a session that is closed at once.

    The caller's is opened by `list_devices`, which stops all threads of this process while a server is absent.

    Args:
        config: Of the caller's session, with the ClusterSpec.
        job: Of this client.

    Raises:
        TimeoutError: A server is absent or frozen.
        tf.errors.OpError: The session is refused.
    """
    graph = tf.Graph()
    with graph.as_default(), graph.device(f"/job:{job}/task:0"):
        nothing = tf.no_op()
    options = v1.ConfigProto()
    options.CopyFrom(config)
    # That is the timeout of the caller's steps.
    options.ClearField("operation_timeout_in_ms")
    session = v1.Session(target, graph=graph, config=options)
    open_within(timeout_secs, session, nothing)
    with suppress(TimeoutError):
        run_within(CLOSE_SECS, partial(_run_recorded, session.close))


def _config(
    access: FleetAccess, tasks: Sequence[FleetTask], own: Address, job: str, config: v1.ConfigProto | None
) -> v1.ConfigProto:
    cluster: dict[str, dict[int, str]] = defaultdict(dict)
    for task in tasks:
        cluster[task.role][task.index] = task.data
    cluster[job][0] = own.data
    merged = v1.ConfigProto()
    merged.CopyFrom(session_config(access.device) if config is None else config)
    merged.cluster_def.CopyFrom(tf.train.ClusterSpec(dict(cluster)).as_cluster_def())
    merged.experimental.share_session_state_in_clusterspec_propagation = True
    return merged
