"""A ps takes a push, waits, and gives the parameters, in one call of its session or in two."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tf_servers import tf_server

from ps_service import exchange_graph
from ps_service.exchange_graph import ExchangeGraph
from ps_service.shard_graph import ShardGraph
from ps_service.shard_plan import ShardPlan
from psfleet.checkpoint.parts import ShardContent
from psfleet.job.job import parse_job
from psfleet.layout import Layout, TensorSpec
from psfleet.polling import wait_until
from psfleet.tf import container_name

WAIT_SECS = 60.0
SIZE = 64
LAYOUT = Layout.plan([TensorSpec("w", (SIZE,))], [], [], num_ps=1, bucket_bytes=4096)
WITH_STATE = Layout.plan(
    [TensorSpec("w", (SIZE,))], [TensorSpec("counts", (SIZE,), "int64")], [], num_ps=1, bucket_bytes=4096
)
RATE = 0.5


@contextmanager
def shard(
    run: str, step_secs: float = WAIT_SECS, layout: Layout = LAYOUT, **update: Any
) -> Iterator[tuple[ShardGraph, ExchangeGraph]]:
    """A shard of two workers whose parameters are zeros, with SGD."""
    job = parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "fleet": {"ps": 1, "workers": 2},
            "optimizer": {"name": "sgd", "learning_rate": RATE},
            "update": update,
            "train": {"steps": 100, "batch_size": 4},
            "deadlines": {"step_secs": step_secs},
        }
    )
    plan = ShardPlan(run, 1, 0, job, layout, Path())
    parameters, state = np.zeros(layout.parameters.shard_size, np.float32), np.zeros(layout.state.shard_size, np.uint8)
    content = ShardContent(parameters, {}, {}, state, np.zeros(0, np.uint8))
    with tf_server([container_name(run, 1)]) as address:
        target = f"grpc://{address.data}"
        graph, exchanges = ShardGraph(target, plan, 0, content), ExchangeGraph(target, plan)
        try:
            yield graph, exchanges
        finally:
            graph.close()
            exchanges.close()


def pushed(exchanges: ExchangeGraph, worker: int, step: int, value: float) -> list[np.ndarray]:
    call = exchanges.call(0, 0, worker)
    assert call is not None
    stamp, gradient = tensors = call.pushed.take()
    stamp[:], gradient[:] = step, value
    return tensors


def exchanged(exchanges: ExchangeGraph, worker: int, tensors: list[np.ndarray]) -> tuple[list[int], np.ndarray]:
    """Global step and final step, and the parameters."""
    call = exchanges.call(0, 0, worker)
    assert call is not None
    numbers, parameters = call.run(worker, tensors)
    return numbers.tolist(), parameters


@pytest.fixture(params=["one call", "two calls"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "two calls":
        monkeypatch.setattr(exchange_graph, "SMALL_BYTES", 0)
    return str(request.param)


def test_a_sync_step_gives_each_worker_the_average(calls: str) -> None:
    with shard(f"sync-{len(calls)}", mode="sync") as (graph, exchanges), ThreadPoolExecutor(2) as pool:
        for step in range(3):
            replies = [
                pool.submit(exchanged, exchanges, worker, pushed(exchanges, worker, step, 1.0 + worker))
                for worker in range(2)
            ]
            assert graph.updates.advance(False) == step + 1
            for reply in replies:
                numbers, parameters = reply.result(WAIT_SECS)
                assert numbers == [step + 1, 100]
                np.testing.assert_allclose(parameters, -RATE * 1.5 * (step + 1))
        assert graph.counters().pushed[:2].tolist() == graph.counters().used[:2].tolist() == [3, 3]


def test_the_chief_alone_pushes_state_other_than_numbers_of_floating_point() -> None:
    with shard("state", layout=WITH_STATE, mode="sync") as (_, exchanges):
        sizes = []
        for worker in range(2):
            call = exchanges.call(0, 0, worker)
            assert call is not None
            sizes.append(call.pushed.num_bytes)
            assert exchanges.layouts(worker)[0, 0].num_bytes == call.pushed.num_bytes
        assert sizes[0] == sizes[1] + WITH_STATE.state.shard_size


def test_an_async_gradient_is_applied_and_answered(calls: str) -> None:
    with shard(f"async-{len(calls)}", mode="async") as (graph, exchanges), ThreadPoolExecutor(1) as pool:
        for step in range(3):
            reply = pool.submit(exchanged, exchanges, step % 2, pushed(exchanges, step % 2, step, 1.0))
            assert graph.updates.advance(False) == step + 1
            numbers, parameters = reply.result(WAIT_SECS)
            assert numbers == [step + 1, 100]
            np.testing.assert_allclose(parameters, -RATE * (step + 1))


def test_a_large_push_is_not_kept_while_its_worker_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ps would else have the pushes of all workers but the last in memory, beside their sum."""
    monkeypatch.setattr(exchange_graph, "SMALL_BYTES", 0)
    with shard("memory", mode="sync") as (graph, exchanges), ThreadPoolExecutor(2) as pool:
        tensors = pushed(exchanges, 0, 0, 1.0)
        first = pool.submit(exchanged, exchanges, 0, tensors)
        wait_until(lambda: not tensors, WAIT_SECS, "the push to be in the queue")
        assert not first.done()
        second = pool.submit(exchanged, exchanges, 1, pushed(exchanges, 1, 0, 3.0))
        graph.updates.advance(False)
        for each in (first, second):
            np.testing.assert_allclose(each.result(WAIT_SECS)[1], -RATE * 2.0)


def test_a_reply_does_not_change_when_the_shard_is_updated_again(calls: str) -> None:
    """It shares the memory of a variable, and is sent while the next update is made."""
    with shard(f"kept-{len(calls)}", mode="async") as (graph, exchanges), ThreadPoolExecutor(1) as pool:
        kept = []
        for step in range(5):
            reply = pool.submit(exchanged, exchanges, 0, pushed(exchanges, 0, step, 1.0))
            graph.updates.advance(False)
            kept.append(reply.result(WAIT_SECS)[1])
        for step, parameters in enumerate(kept):
            np.testing.assert_allclose(parameters, -RATE * (step + 1))


def test_a_segment_or_loss_that_does_not_exist_has_no_exchange() -> None:
    with shard("none", mode="sync") as (_, exchanges):
        assert exchanges.num_segments == 1
        assert exchanges.call(1, 0, 0) is None
        assert exchanges.call(0, 1, 0) is None
