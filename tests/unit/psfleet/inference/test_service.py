"""What a service counts of its queries."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

from psfleet.inference.batches import Batcher
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.metrics import QUERIES, ServiceMetrics
from psfleet.inference.service import ModelService


def test_a_query_that_its_client_cancels_is_counted_as_cancelled() -> None:
    metrics = ServiceMetrics("net")

    async def ask() -> None:
        ensemble = Ensemble("net", 1, 1.0)
        service = ModelService("net", ensemble, Batcher(ensemble.ask, 1, 0.0), metrics, 1)
        has_begun = asyncio.Event()

        async def parse() -> Never:
            has_begun.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("the future has no result")

        query = asyncio.create_task(service.infer(parse, "grpc"))
        await has_begun.wait()
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query

    asyncio.run(ask())
    (found,) = metrics.read()
    counted = {each.labels: each.value for each in found.readings if each.metric is QUERIES}
    assert counted == {("grpc", "cancelled"): 1}
