"""A queue that clients of a standing fleet share: as operations of a graph, and as calls from Python."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.control.attendance import FleetTask
from psfleet.errors import BadJobError, DeadlineError, LostPeerError, QueueClosedError, UsageError
from psfleet.tf.client.queue_calls import QueueCalls
from psfleet.tf.client.queue_kind import QueueKind
from psfleet.tf.client.session import FleetSession
from psfleet.tf.error_text import reason
from psfleet.tf.own_session import repeat_refused

CLOSED = re.compile(r".* is (already )?closed|Enqueue operation was cancelled")
"""TensorFlow's messages about a queue that is closed, also while a call waits for room in it."""
OTHER = re.compile(r"Shared queue|Expected \w*Queue\w*, found \w*Queue")
"""TensorFlow's messages about a queue of the same name with other properties, or of another kind."""
MIN_MS = 50
"""Shortest timeout of a call: of one that expires while it is sent, TensorFlow loses the end, and waits for ever."""
MAX_MS = 2**62
"""Longest timeout of a call: without an end for all that matters."""

Element = Any
"""A NumPy value if the queue's elements have one component, else a tuple of them."""


class Queue:
    """A queue of TensorFlow on one task of a fleet, which all clients share that give its name in the same container.

    Made by `Fleet.queue`. `op` is TensorFlow's object for graphs; the methods are calls from Python, from any thread.
    They have a session of their own with the queue's task only.

    Every method has `timeout_secs`; None: the fleet's `deadlines.stall_secs`.

    Raises (every method):
        QueueClosedError: The queue is closed, and `dequeue` has no element left.
        DeadlineError: The queue stayed full or empty; the queue can still be used.
        LostPeerError: The task has gone away, and the elements with it; the next call uses an empty queue.
        UsageError: The values are not an element of the queue.

    Attributes:
        kind: What the queue holds.
        container: Name of its container; empty: TensorFlow's default one.
        device: The device that holds it.
        op: See the property.
    """

    def __init__(
        self,
        kind: QueueKind,
        task: FleetTask,
        place: Callable[[tf.Graph], Any],
        connect: Callable[[FleetTask], FleetSession],
        container: str,
        default_secs: float,
    ) -> None:
        self.kind = kind
        self.container = container
        self.device = f"/job:{task.role}/task:{task.index}"
        self._task = task
        self._place = place
        self._connect = connect
        self._default_secs = default_secs
        self._lock = threading.Lock()
        self._ops: WeakKeyDictionary[tf.Graph, tf.queue.QueueBase] = WeakKeyDictionary()
        self._calls: QueueCalls | None = None
        # Elements that this client took for a call that it could not complete.
        self._kept: deque[list[np.ndarray]] = deque()

    @property
    def op(self) -> tf.queue.QueueBase:
        """TensorFlow's queue as an object of the default graph, the same one at each use.

        Raises:
            UsageError: Operations are executed eagerly, expected a graph.
        """
        if tf.executing_eagerly():
            raise UsageError(f"{self}: op is used without a graph, expected one: `with tf.Graph().as_default():`")
        graph = v1.get_default_graph()
        with self._lock:
            if graph not in self._ops:
                with self._place(graph):
                    self._ops[graph] = self.kind.make()
            return self._ops[graph]

    def enqueue(self, values: Any, timeout_secs: float | None = None) -> None:
        """Adds an element; waits while the queue is full.

        Args:
            values: The element: a value of the only component, or a sequence of those of each component.
        """
        calls = self._connected()
        self._run(calls, calls.enqueue, calls.feeds(values), timeout_secs, "room in")

    def enqueue_many(self, values: Any, timeout_secs: float | None = None) -> None:
        """Adds elements; waits while the queue is full.

        After a `DeadlineError` some of them may be in the queue: TensorFlow adds them one by one.

        Args:
            values: As those of `enqueue`, with a first dimension for the elements.
        """
        calls = self._connected()
        self._run(calls, calls.enqueue_many, calls.feeds_of_many(values), timeout_secs, "room in")

    def dequeue(self, timeout_secs: float | None = None) -> Element:
        """Takes an element; waits while the queue is empty."""
        with self._lock:
            if self._kept:
                return _element(self._kept.popleft())
        return _element(self._dequeue(timeout_secs))

    def dequeue_many(self, number: int, timeout_secs: float | None = None) -> Element:
        """Takes elements; waits until there are as many.

        This call takes them one by one, in a call to the task each. When it fails, this client keeps those that it
        has, and the next call returns them first. TensorFlow's own operation, `op.dequeue_many`, is faster for many
        small elements, but loses what it has taken when its session's call times out.

        Returns:
            Each component with a first dimension of `number`.
        """
        return _element(self._take(number, timeout_secs, allows_fewer=False))

    def dequeue_up_to(self, number: int, timeout_secs: float | None = None) -> Element:
        """As `dequeue_many`; of a queue that is closed returns what is left, if that is at least one element."""
        return _element(self._take(number, timeout_secs, allows_fewer=True))

    def size(self, timeout_secs: float | None = None) -> int:
        """The number of elements in the queue, without those that a client keeps (see `dequeue_many`)."""
        calls = self._connected()
        return int(self._run(calls, calls.size, {}, timeout_secs, "the size of"))

    def close(self, cancel_pending_enqueues: bool = False, timeout_secs: float | None = None) -> None:
        """Closes the queue for all clients: nothing can be added, and what is left can be taken. It may be closed.

        Args:
            cancel_pending_enqueues: Whether calls that wait for room fail; otherwise this call waits until they have
                added their elements.
        """
        calls = self._connected()
        call = calls.cancel if cancel_pending_enqueues else calls.close
        with suppress(QueueClosedError):
            self._run(calls, call, {}, timeout_secs, "the end of")

    def __repr__(self) -> str:
        return f"queue {self.kind.name!r}" + (f" in container {self.container!r}" if self.container else "")

    def _dequeue(self, timeout_secs: float | None) -> list[np.ndarray]:
        calls = self._connected()
        return list(self._run(calls, calls.dequeue, {}, timeout_secs, "an element of"))

    def _take(self, number: int, timeout_secs: float | None, allows_fewer: bool) -> list[np.ndarray]:
        """Takes elements one by one, as a batch; keeps them for the next call if there are too few, or no batch."""
        if number < 1:
            raise UsageError(f"{self}: number is {number}, expected at least 1")
        secs = self._limit(timeout_secs)
        deadline = time.monotonic() + secs
        with self._lock:
            taken = [self._kept.popleft() for _ in range(min(number, len(self._kept)))]
        try:
            try:
                while len(taken) < number:
                    taken.append(self._dequeue(max(0.0, deadline - time.monotonic())))
            except QueueClosedError:
                if not (allows_fewer and taken):
                    raise
            return self.kind.stack(taken)
        except BaseException as error:
            with self._lock:
                self._kept.extendleft(reversed(taken))
            if isinstance(error, DeadlineError):
                seen = f"{len(taken)}, which the next call returns first"
                raise DeadlineError(f"{number} elements of {self}", secs, seen) from error
            raise

    def _limit(self, timeout_secs: float | None) -> float:
        secs = self._default_secs if timeout_secs is None else timeout_secs
        if math.isnan(secs):
            raise UsageError(f"{self}: timeout_secs is nan, expected a number of seconds")
        return secs

    def _connected(self) -> QueueCalls:
        """The operations of the methods, in this client's present session with the task.

        Raises:
            BadJobError: There is a queue of this name with other properties.
        """
        with self._lock:
            if self._calls is None or self._calls.session.is_lost:
                session = self._connect(self._task)
                with session.graph.as_default(), self._place(session.graph):
                    self._calls = QueueCalls(session, self.kind)
            return self._calls

    def _run(self, calls: QueueCalls, fetch: Any, feeds: dict[Any, Any], timeout_secs: float | None, what: str) -> Any:
        """Runs an operation of the queue's task; raises what the class says."""
        secs = self._limit(timeout_secs)
        options = v1.RunOptions(timeout_in_ms=max(MIN_MS, int(min(secs * 1000, MAX_MS))))
        try:
            return repeat_refused(calls.session.run)(fetch, feeds, options=options)
        except tf.errors.DeadlineExceededError as error:
            raise DeadlineError(f"{what} {self}", secs) from error
        except tf.errors.OutOfRangeError as error:
            raise QueueClosedError(f"{self} is closed and has no element left") from error
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self}: {error}") from error
        except tf.errors.OpError as error:
            raise self._meaning(error) from error

    def _meaning(self, error: tf.errors.OpError) -> Exception:
        """What an error of TensorFlow means that is neither a timeout nor the end of the elements."""
        details = reason(error)
        if CLOSED.match(details):
            return QueueClosedError(f"{self} is closed")
        if OTHER.match(details):
            return BadJobError(f"{self} has other properties: {details}")
        if isinstance(error, tf.errors.InvalidArgumentError):
            return UsageError(f"{self}: {details}")
        return LostPeerError(f"{self} is gone: its container was reset, or {self._task.name} started again ({details})")


def _element(parts: Sequence[np.ndarray]) -> Element:
    return parts[0] if len(parts) == 1 else tuple(parts)
