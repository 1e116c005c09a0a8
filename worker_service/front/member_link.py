"""The front's way to one member: a thread that sends queries, and one that receives predictions."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import tensorflow as tf

from psfleet.inference.batches import Inputs
from psfleet.inference.predictions import Prediction
from psfleet.inference.tensors import ModelMetadata
from psfleet.tf.error_text import reason
from psfleet.tf.own_session import OwnSession, unoptimized
from psfleet.tf.query_queues import RESEND, QueryQueues, member_container, placeholders

logger = logging.getLogger("psfleet.front")


class MemberLink:
    """Both queues of a member, on this process's server.

    Args of the constructor:
        target: Session target of this process's server.
        name: Of the member's container.
        metadata: Of its model.
        received: Called with the number of a batch and its prediction, on a thread.
    """

    def __init__(
        self, target: str, name: str, metadata: ModelMetadata, received: Callable[[MemberLink, int, Prediction], None]
    ) -> None:
        self._name = name
        self._received = received
        self._unsent: queue.SimpleQueue[tuple[int, Inputs] | None] = queue.SimpleQueue()
        self._unanswered: dict[int, Inputs] = {}
        self._lock = threading.Lock()
        graph = tf.Graph()
        queues = QueryQueues(graph, None, member_container(name), metadata)
        with graph.as_default():
            feeds = placeholders(queues.queries)
            enqueue, dequeue = queues.queries.enqueue(feeds), queues.predictions.dequeue()
            both = (queues.queries, queues.predictions)
            self._close = [each.close(cancel_pending_enqueues=True) for each in both]
            self._destroy = [
                tf.raw_ops.DestroyResourceOp(resource=each.queue_ref, ignore_lookup_error=True) for each in both
            ]
        self._session = OwnSession(target, graph=graph, config=unoptimized())
        self._put = self._session.make_callable(enqueue, feeds)
        self._take = self._session.make_callable(dequeue)
        self._threads = [
            threading.Thread(target=run, name=f"{what}-{name}", daemon=True)
            for what, run in (("to-member", self._send_all), ("of-member", self._receive_all))
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def send(self, number: int, inputs: Inputs) -> None:
        """See `Link`."""
        self._unsent.put((number, inputs))

    def close(self) -> None:
        """Ends the threads, and the member if it still runs; destroys the queues."""
        self._unsent.put(None)
        try:
            self._session.run(self._close)
            for thread in self._threads:
                thread.join()
            self._session.run(self._destroy)
        except tf.errors.OpError as error:
            logger.warning("queues of member %s stay: %s", self._name, reason(error))
        self._session.close()

    def _send_all(self) -> None:
        # Closed: the member has been replaced.
        with suppress(tf.errors.CancelledError):
            while (element := self._unsent.get()) is not None:
                number, inputs = element
                with self._lock:
                    self._unanswered[number] = inputs
                self._put(np.int64(number), *inputs)

    def _receive_all(self) -> None:
        with suppress(tf.errors.OutOfRangeError, tf.errors.CancelledError):
            while True:
                number, step, error, *outputs = self._take()
                if number == RESEND:
                    self._resend()
                    continue
                with self._lock:
                    self._unanswered.pop(int(number), None)
                self._received(self, int(number), Prediction(int(step), outputs, error.decode()))

    def _resend(self) -> None:
        with self._lock:
            unanswered = list(self._unanswered.items())
        for number, inputs in unanswered:
            self._put(np.int64(number), *inputs)
