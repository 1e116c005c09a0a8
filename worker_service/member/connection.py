"""A member's session with the front: takes batches of queries from its queue, and adds predictions to the other."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.inference.tensors import ModelMetadata
from psfleet.job.sections import Device
from psfleet.polling import wait_until
from psfleet.tf.error_text import reason
from psfleet.tf.opening import open_within
from psfleet.tf.own_session import is_refused
from psfleet.tf.query_queues import (
    FRONT,
    RESEND,
    QueryQueues,
    answers,
    empty_outputs,
    joins_queue,
    member_container,
    placeholders,
)
from psfleet.tf.server import session_config

logger = logging.getLogger("psfleet.member")

FRONT_SECS = 60.0
"""Until the front answers a member that starts."""
MAX_REFUSALS = 5
"""How often TensorFlow may refuse one call (see `psfleet.tf.own_session`)."""


class FrontConnection:
    """Context manager for the session of a member.

    Args of the constructor:
        front: Address of the front's TensorFlow server.
        own: That of this process.
        index: Of the member.
        metadata: Of its model.
        device: Threads and accelerators of the session.

    Raises:
        LostPeerError: The front does not answer.
    """

    def __init__(self, front: Address, own: Address, index: int, metadata: ModelMetadata, device: Device) -> None:
        self._index = index
        self._own = own
        self._metadata = metadata
        self._name = f"{index}-{secrets.token_hex(8)}"
        wait_until(lambda: answers(front), FRONT_SECS, f"the front at {front.data}")
        # A name of its own: sessions of one job name evict each other.
        job = f"member_{secrets.token_hex(8)}"
        cluster = tf.train.ClusterSpec({FRONT: {0: front.data}, job: {0: own.data}})
        config = session_config(device)
        config.cluster_def.CopyFrom(cluster.as_cluster_def())
        config.experimental.share_session_state_in_clusterspec_propagation = True
        graph = tf.Graph()
        path = f"/job:{FRONT}/task:0"
        queues = QueryQueues(graph, path, member_container(self._name), metadata)
        joins = joins_queue(graph, path)
        with graph.as_default(), graph.device(f"/job:{job}/task:0"):
            # Copies on this process's own device: otherwise the fetch alone would not bring them here.
            taken = [tf.identity(each) for each in _listed(queues.queries.dequeue())]
            feeds, text = placeholders(queues.predictions), v1.placeholder(tf.string, [])
            enqueue, join = queues.predictions.enqueue(feeds), joins.enqueue([text])
            nothing = tf.no_op()
        self._session = v1.Session(f"grpc://{own.data}", graph=graph, config=config)
        try:
            with _losses():
                open_within(FRONT_SECS, self._session, nothing)
                self._take = self._session.make_callable(taken)
                self._put = self._session.make_callable(enqueue, feeds)
                self._join = self._session.make_callable(join, [text])
        except TimeoutError as error:
            raise LostPeerError(f"no session with the front within {FRONT_SECS:g} s") from error

    def join(self, step: int) -> None:
        """Asks the front for queries."""
        text = json.dumps(
            {
                "index": self._index,
                "name": self._name,
                "address": self._own.data,
                "step": step,
                "metadata": self._metadata.model_dump(mode="json"),
            }
        )
        # The front's connection to this address may wait since the death of the process before this one.
        with _losses():
            wait_until(lambda: self._is_reached(text), FRONT_SECS, f"the front to reach {self._own.data}")

    def _is_reached(self, text: str) -> bool:
        """Asks the front for queries; False: one of the two does not reach the other."""
        try:
            self._repeated(self._join, text.encode())
        except tf.errors.UnavailableError as error:
            # Which of the two is not known: gRPC's message has an IP address where that of the fleet has a name.
            logger.debug("asking the front again: %s", error.message)
            return False
        return True

    def take(self) -> tuple[int, list[np.ndarray]]:
        """Waits for the next batch; its number, and the inputs in the order of the metadata.

        Raises:
            LostPeerError: The front is gone, or has replaced this member.
        """
        with _losses():
            while True:
                try:
                    number, *inputs = self._take()
                    return int(number), inputs
                except tf.errors.AbortedError as error:
                    if not is_refused(error):
                        raise
                    # The front's part of the call may have run: then it has taken a batch that is lost.
                    logger.debug("asking for queries again: %s", error.message)
                    self._add(RESEND, 0, "", empty_outputs(self._metadata))

    def put(self, number: int, step: int, outputs: Sequence[np.ndarray] | None, error: str = "") -> None:
        """Adds the prediction of a batch; None: there is none because of an error."""
        with _losses():
            self._add(number, step, error, empty_outputs(self._metadata) if outputs is None else outputs)

    def _add(self, number: int, step: int, error: str, outputs: Sequence[np.ndarray]) -> None:
        # The front ignores the second one if a call that is repeated had run.
        self._repeated(self._put, np.int64(number), np.int64(step), error.encode(), *outputs)

    @staticmethod
    def _repeated(call: v1.Session, *values: object) -> None:
        for left in reversed(range(MAX_REFUSALS)):
            try:
                call(*values)
                return
            except tf.errors.AbortedError as error:
                if not left or not is_refused(error):
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The process ends: closing could wait for a front that is gone.
        if error is None:
            self._session.close()


@contextmanager
def _losses() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise LostPeerError(f"the front is gone: {reason(error)}") from error


def _listed(element: object) -> Sequence[tf.Tensor]:
    return element if isinstance(element, list | tuple) else [element]
