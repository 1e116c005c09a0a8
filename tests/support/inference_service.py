"""A service of one model in this process, whose only member doubles its first input at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from psfleet.inference.access import ClientAccess
from psfleet.inference.batches import Batcher, Inputs
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.metrics import ServiceMetrics
from psfleet.inference.predictions import Prediction
from psfleet.inference.rest import serving_rest
from psfleet.inference.service import ModelService
from psfleet.inference.tensors import ModelMetadata, TensorMetadata
from psfleet.processes.ports import free_addresses

EVERYONE = ClientAccess()
METADATA = ModelMetadata(
    inputs=(
        TensorMetadata(name="a", datatype="FP16", shape=(-1, 2)),
        TensorMetadata(name="b", datatype="BYTES", shape=(-1,)),
    ),
    outputs=(
        TensorMetadata(name="twice", datatype="FP16", shape=(-1, 2)),
        TensorMetadata(name="same", datatype="BYTES", shape=(-1,)),
    ),
)


class _Link:
    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble

    def send(self, number: int, inputs: Inputs) -> None:
        self._ensemble.reply(0, self, number, Prediction(3, [2 * inputs[0], inputs[1]]), 0.0)


def with_service(
    use: Callable[[int], Awaitable[Any]],
    protocol: Any = serving_rest,
    access: ClientAccess = EVERYONE,
    max_query_bytes: int = 10_000,
) -> Any:
    """Has a service serve on a port while `use` runs; its result."""
    (address,) = free_addresses(1)

    async def run() -> Any:
        ensemble = Ensemble("net", 1, 1.0)
        assert not ensemble.join(0, _Link(ensemble), 3, METADATA)
        batcher = Batcher(ensemble.ask, 64, 0.0, asyncio.get_running_loop().time)
        service = ModelService("net", ensemble, batcher, ServiceMetrics("net"), max_query_bytes)
        async with protocol(service, "127.0.0.1", address.port, access):
            return await use(address.port)

    return asyncio.run(run())


def service_without_members() -> ModelService:
    """A service that answers no query."""
    ensemble = Ensemble("net", 1, 1.0)
    return ModelService("net", ensemble, Batcher(ensemble.ask, 1, 0.0), ServiceMetrics("net"), 1)
