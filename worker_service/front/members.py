"""The members of a service as they join the front, each with its link."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from psfleet.errors import BadJobError, ChangedProgramError, PsfleetError
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.predictions import Prediction
from psfleet.inference.tensors import ModelMetadata
from psfleet.tf.own_session import OwnSession, unoptimized
from psfleet.tf.query_queues import joins_queue
from worker_service.front.graph_route import GraphRoute
from worker_service.front.member_link import MemberLink

logger = logging.getLogger("psfleet.front")


class Members:
    """Adds members to an ensemble; `start` and `close` are called in its event loop.

    Args of the constructor:
        target: Session target of this process's server.
        ensemble: Of the service.
        route: Of an in-graph service; None: each member gets queries by its link.
        failed: Called with the error if a member does not fit the others before all were ready, if it is the only one
            and its model has other inputs or outputs than before, or if none can join any more.
    """

    def __init__(
        self, target: str, ensemble: Ensemble, route: GraphRoute | None, failed: Callable[[BaseException], object]
    ) -> None:
        self._target = target
        self._ensemble = ensemble
        self._route = route
        self._failed = failed
        self._links: dict[int, MemberLink] = {}
        self._was_complete = False
        self._loop = asyncio.get_running_loop()
        graph = tf.Graph()
        joins = joins_queue(graph, None)
        with graph.as_default():
            dequeue = joins.dequeue()
        self._session = OwnSession(target, graph=graph, config=unoptimized())
        self._take = self._session.make_callable(dequeue)

    def start(self) -> None:
        """Starts the thread to which members add themselves; it ends with the process."""
        threading.Thread(target=self._receive_all, name="joins", daemon=True).start()

    def _receive_all(self) -> None:
        try:
            while True:
                self._receive(json.loads(self._take()))
        except Exception as error:
            self._loop.call_soon_threadsafe(self._failed, error)

    def _receive(self, join: Mapping[str, Any]) -> None:
        metadata = ModelMetadata.model_validate(join["metadata"])
        index = int(join["index"])

        def received(link: MemberLink, number: int, prediction: Prediction) -> None:
            now = self._loop.time()
            self._loop.call_soon_threadsafe(self._ensemble.reply, index, link, number, prediction, now)

        link = MemberLink(self._target, join["name"], metadata, received)
        link.start()
        self._loop.call_soon_threadsafe(self._add, index, link, join, metadata)

    def _add(self, index: int, link: MemberLink, join: Mapping[str, Any], metadata: ModelMetadata) -> None:
        step = int(join["step"])
        problem = self._ensemble.join(index, link, step, metadata)
        if problem:
            error: PsfleetError = BadJobError(f"member {index}: {problem}")
            if self._is_alone(index):
                # The next front has no queries and no session of the model before.
                error = ChangedProgramError(str(error))
            logger.error("%s", error)
            if isinstance(error, ChangedProgramError) or not self._was_complete:
                self._failed(error)
            replaced: MemberLink | None = link
        else:
            logger.info("member %d joins with step %d", index, step, extra={"event": "member", "member": index})
            if self._route is not None:
                self._route.add(index, join["name"], join["address"], metadata)
            replaced, self._links[index] = self._links.get(index), link
            self._was_complete = self._was_complete or len(self._links) == self._ensemble.num_members
        if replaced is not None:
            threading.Thread(target=replaced.close, name="close-member", daemon=True).start()

    def _is_alone(self, index: int) -> bool:
        """Whether a member is one of a single model, and no other one answers queries."""
        others = {*range(self._ensemble.num_members)} - {index}
        return self._ensemble.num_models == 1 and all(map(self._ensemble.is_late, others))
