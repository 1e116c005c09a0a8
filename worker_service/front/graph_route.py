"""In-graph ensembles: one session of the front over all members, whose graph calls the model of each on its device.

The graph adds each prediction to a queue on the front, so that those which are there count when another member does
not answer. Members also have the queues of `MemberLink`, by which the front learns who is alive. A session stays usable
when a member dies, for steps without it; a member that joins needs another session.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.inference.batches import MAX_IN_FLIGHT, Inputs
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.predictions import Prediction, without_rows
from psfleet.inference.tensors import ModelMetadata
from psfleet.tf.error_text import reason
from psfleet.tf.opening import open_within
from psfleet.tf.own_session import OwnSession, unoptimized
from psfleet.tf.query_queues import CAPACITY, CONTAINER, PREDICT, dtypes
from psfleet.tf.server import session_config

logger = logging.getLogger("psfleet.front")

LOOK_SECS = 0.1
"""Interval of looks for members that the session lacks."""
OPEN_SECS = 10.0
"""Until a session is open."""
CLOSE_SECS = 1.0
"""How much longer a session stays open than its last step may take."""
NO_BATCH = 0
"""Number of steps whose predictions nobody waits for."""
LATE_SECS = 0.5
"""How much longer a step may run than the queries wait."""


@dataclass(frozen=True)
class _Session:
    """A session over some members; `names` are those of their containers, `puts` make their predictions."""

    session: v1.Session
    names: Mapping[int, str]
    number: tf.Tensor
    feeds: Sequence[tf.Tensor]
    puts: Mapping[int, tf.Operation]


class GraphRoute:
    """See `Route`; made, and its members are added, in the event loop.

    Args of the constructor:
        target: Session target of this process's server.
        own: Its address.
        ensemble: Of the service.
        timeout_secs: Of queries.
    """

    def __init__(self, target: str, own: Address, ensemble: Ensemble, timeout_secs: float) -> None:
        self._target = target
        self._own = own
        self._ensemble = ensemble
        self._run_ms = int(1000 * (timeout_secs + LATE_SECS))
        self._members: dict[int, tuple[str, str]] = {}
        self._current: _Session | None = None
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(4 * MAX_IN_FLIGHT * ensemble.replicas, "in-graph")
        self._metadata: ModelMetadata | None = None

    def add(self, index: int, name: str, address: str, metadata: ModelMetadata) -> None:
        """Adds a member, in place of the one that had its index.

        Args:
            name: Of its container.
            address: `host:port` of its TensorFlow server.
        """
        self._members[index] = (name, address)
        if self._metadata is None:
            self._metadata = metadata
            threading.Thread(target=self._receive_all, name="predictions", daemon=True).start()

    async def keep(self) -> None:
        """Opens a session when one lacks a member that is alive; until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECS)
            alive = {index: each for index, each in self._members.items() if not self._ensemble.is_late(index)}
            if all(self.has(index) for index in alive) or self._metadata is None:
                continue
            try:
                opened = await self._loop.run_in_executor(None, self._opened, alive, self._metadata)
            except (TimeoutError, tf.errors.OpError) as error:
                logger.warning("no session with members %s: %s", sorted(alive), error)
                continue
            before, self._current = self._current, opened
            if before is not None:
                # Closing ends the steps of a session, and can wait for a member that is frozen.
                closing = threading.Timer(self._run_ms / 1000 + CLOSE_SECS, before.session.close)
                closing.daemon = True
                closing.start()

    def has(self, index: int) -> bool:
        """See `Route`."""
        current = self._current
        return current is not None and index in self._members and current.names.get(index) == self._members[index][0]

    def send(self, number: int, inputs: Inputs, members: Sequence[int]) -> None:
        """See `Route`."""
        assert self._current is not None, "`has` was true for a member"
        self._threads.submit(self._run, self._current, number, inputs, members)

    def _run(
        self, current: _Session, number: int, inputs: Inputs, members: Sequence[int], is_repeated: bool = False
    ) -> None:
        """Makes one step; again for each member by itself if one of them has ended it for all."""
        try:
            self._step(current, number, inputs, members)
        except tf.errors.DeadlineExceededError:
            # Nobody waits for the others any more.
            return
        except Exception as error:
            text = reason(error) if isinstance(error, tf.errors.OpError) else repr(error)
            logger.warning("a step of members %s has failed: %s", list(members), text)
            for index in members:
                if is_repeated:
                    self._loop.call_soon_threadsafe(self._ensemble.miss, index)
                else:
                    self._threads.submit(self._run, current, number, inputs, [index], is_repeated=True)

    def _step(self, current: _Session, number: int, inputs: Inputs, members: Sequence[int]) -> None:
        feeds = dict(zip(current.feeds, inputs, strict=True)) | {current.number: np.int64(number)}
        options = v1.RunOptions(timeout_in_ms=self._run_ms)
        current.session.run([current.puts[index] for index in members], feeds, options=options)

    def _rehearse(self, opened: _Session, metadata: ModelMetadata) -> None:
        """Makes once, without rows, the step of all members, of each alone, and of all but one.

        TensorFlow distributes the graph of a step when it is first made. Queries that have waited for a member which is
        lost have no time left for that.
        """
        every, inputs = tuple(sorted(opened.puts)), [without_rows(each) for each in metadata.inputs]
        others = (tuple(each for each in every if each != one) for one in every)
        # The queries miss a member that is lost meanwhile, too.
        with suppress(tf.errors.OpError):
            for members in filter(None, dict.fromkeys([every, *((one,) for one in every), *others])):
                self._step(opened, NO_BATCH, inputs, members)

    def _receive_all(self) -> None:
        assert self._metadata is not None, "`add` was called"
        graph = tf.Graph()
        with graph.as_default():
            dequeue = _results(self._metadata).dequeue()
        take = OwnSession(self._target, graph=graph, config=unoptimized()).make_callable(dequeue)
        while True:
            number, index, step, error, *outputs = take()
            prediction = Prediction(int(step), outputs, error.decode())
            self._loop.call_soon_threadsafe(self._ensemble.take, int(index), int(number), prediction)

    def _opened(self, members: Mapping[int, tuple[str, str]], metadata: ModelMetadata) -> _Session:
        # Sessions of one job name evict each other.
        token = secrets.token_hex(8)
        jobs = {f"member_{index}_{token}": address for index, (_, address) in members.items()}
        front = f"front_{token}"
        cluster = tf.train.ClusterSpec({front: {0: self._own.data}, **{job: {0: at} for job, at in jobs.items()}})
        config = session_config(None)
        config.cluster_def.CopyFrom(cluster.as_cluster_def())
        config.experimental.share_session_state_in_clusterspec_propagation = True
        graph = tf.Graph()
        with graph.as_default(), graph.device(f"/job:{front}/task:0"):
            number = v1.placeholder(tf.int64, [])
            feeds = [v1.placeholder(dtype) for dtype in dtypes(metadata.inputs)]
            results = _results(metadata)
            types = [tf.int64, tf.string, *dtypes(metadata.outputs)]
            puts = {}
            for index, job in zip(members, jobs, strict=True):
                with graph.device(f"/job:{job}/task:0"):
                    found = tf.raw_ops.PyFunc(input=[tf.identity(each) for each in feeds], token=PREDICT, Tout=types)
                puts[index] = results.enqueue([number, tf.constant(index, tf.int64), *found])
            nothing = tf.no_op()
        session = v1.Session(self._target, graph=graph, config=config)
        open_within(OPEN_SECS, session, nothing)
        names = {index: name for index, (name, _) in members.items()}
        opened = _Session(session, names, number, feeds, puts)
        self._rehearse(opened, metadata)
        return opened


def _results(metadata: ModelMetadata) -> tf.queue.FIFOQueue:
    """The queue of all predictions: number of the batch, index of the member, step, error, outputs."""
    types = [tf.int64, tf.int64, tf.int64, tf.string, *dtypes(metadata.outputs)]
    with v1.get_default_graph().container(CONTAINER):
        return tf.queue.FIFOQueue(CAPACITY, types, shared_name="in_graph")
