"""A service of one model, as REST and gRPC see it: health, metadata and answers; runs in one event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from psfleet.inference.batches import Batcher
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.metrics import CANCELLED, DONE, ServiceMetrics
from psfleet.inference.query import Answer, Query, checked_inputs
from psfleet.inference.tensors import ModelMetadata, QueryError, Status

logger = logging.getLogger("psfleet.front")

PLATFORM = "tensorflow_psfleet"
"""Of the model, for information: in the protocol's form `<project>_<format>`."""


class ModelService:
    """One model.

    Attributes:
        name: Of the model.
        max_query_bytes: The largest message of a query.
    """

    def __init__(
        self,
        name: str,
        ensemble: Ensemble,
        batcher: Batcher,
        metrics: ServiceMetrics,
        max_query_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.max_query_bytes = max_query_bytes
        self._ensemble = ensemble
        self._batcher = batcher
        self._metrics = metrics
        self._clock = clock
        self._is_draining = False
        self._num_asked = 0

    @property
    def is_ready(self) -> bool:
        """Whether queries have answers: a member is ready, and the service does not end."""
        return self._ensemble.num_ready > 0 and not self._is_draining

    def metadata(self, model: str, version: str) -> tuple[str, ModelMetadata]:
        """The version, and inputs and outputs of the model.

        Raises:
            QueryError: There is no such model or version, or no member is ready.
        """
        self.require_model(model)
        found = self._ensemble.metadata
        if found is None:
            raise QueryError(Status.UNAVAILABLE, f"no member of {self.name} is ready")
        _require_version(version, self._ensemble.version)
        return self._ensemble.version, found

    def is_model_ready(self, model: str, version: str) -> bool:
        """Whether queries for a version have answers; empty: any.

        Raises:
            QueryError: There is no such model.
        """
        self.require_model(model)
        return self.is_ready and version in ("", self._ensemble.version)

    async def infer(self, parse: Callable[[], Awaitable[Query]], protocol: str) -> tuple[Query, Answer]:
        """Answers a query, and returns it, too.

        Args:
            parse: Returns the query, or raises QueryError.
            protocol: rest or grpc.

        Raises:
            QueryError: There is no answer.
        """
        began, result, num_members = self._clock(), Status.FAILED.name.lower(), 0
        self._num_asked += 1
        try:
            if self._is_draining:
                raise QueryError(Status.UNAVAILABLE, f"the service of {self.name} ends")
            query = await parse()
            answer, num_members = await self._answer(query)
            result = DONE
        except QueryError as error:
            result = error.status.name.lower()
            raise
        except asyncio.CancelledError:
            result = CANCELLED
            raise
        except Exception as error:
            logger.exception("a query failed")
            raise QueryError(Status.FAILED, f"a bug in psfleet: {type(error).__name__}: {error}") from error
        finally:
            self._num_asked -= 1
            self._metrics.add(protocol, result, self._clock() - began, num_members)
        return query, answer

    async def drain(self, timeout_secs: float, poll_secs: float = 0.02) -> None:
        """Takes no more queries, and waits until those that it has are answered, for so long at most."""
        self._is_draining = True
        until = self._clock() + timeout_secs
        while self._num_asked and self._clock() < until:
            await asyncio.sleep(poll_secs)

    async def _answer(self, query: Query) -> tuple[Answer, int]:
        _, metadata = self.metadata(query.model, query.version)
        inputs = checked_inputs(query, metadata)
        found = await self._batcher.answer(inputs)
        _require_version(query.version, found.version)
        names = [each.name for each in metadata.outputs]
        outputs = dict(zip(names, found.outputs, strict=True))
        wanted = {name: outputs[name] for name in query.outputs or names}
        members = f"{found.num_models} of {self._ensemble.num_models}"
        return Answer(self.name, found.version, members, wanted), found.num_models

    def require_model(self, model: str) -> None:
        """Raises QueryError if there is no such model."""
        if model != self.name:
            raise QueryError(Status.NOT_FOUND, f"model {model!r} is unknown, expected {self.name!r}")


def _require_version(wanted: str, found: str) -> None:
    if wanted not in ("", found):
        raise QueryError(Status.NOT_FOUND, f"version {wanted!r} is not served, expected {found!r} or none")
