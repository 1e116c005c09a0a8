"""The cost of a barrier, and which workers it releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.graph_fleet import STEP_SECS, graph_fleet

from ps_service.updates import AsyncUpdates, SyncUpdates, Updates
from psfleet.job.update import Stale
from psfleet.layout import Layout, TensorSpec
from psfleet.tf import ShardVariables

PREDECESSORS = 3


class Recorder:
    """Stands for a session: keeps what an update loop runs again and again."""

    def __init__(self) -> None:
        self.fetches: list[tf.Tensor] = []

    def run(self, operation: Any) -> None:
        """Runs nothing."""

    def make_callable(self, fetch: Any, feed_list: Sequence[tf.Tensor] = ()) -> None:
        """Keeps the fetch."""
        del feed_list
        self.fetches.append(fetch)

    prepared = make_callable


def num_operations(mode: str, worker_limit: int) -> list[int]:
    """Operations behind each fetch of an update loop."""
    layout = Layout.plan([TensorSpec("w", (16,))], [], [], num_ps=1, bucket_bytes=4096)
    v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        variables = ShardVariables(layout, 0, worker_limit, "run/1", device="")
        updates: Updates
        if mode == "sync":
            updates = SyncUpdates([(variables, v1.train.GradientDescentOptimizer(1.0))], quorum=2, num_replicas=3)
        else:
            updates = AsyncUpdates(
                variables, lambda factor, _: v1.train.GradientDescentOptimizer(factor), Stale(), lambda _: 0.5
            )
    recorder: Any = Recorder()
    updates.start(recorder)
    names = [getattr(fetch, "op", fetch).name for fetch in recorder.fetches]
    return [len(v1.graph_util.extract_sub_graph(graph.as_graph_def(), [name]).node) for name in names]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_update_runs_as_many_operations_with_128_worker_slots_as_with_4(mode: str) -> None:
    assert num_operations(mode, 128) == num_operations(mode, 4)


def test_tokens_that_were_held_are_sent_without_another_update() -> None:
    with graph_fleet(fleet={"workers": 1}) as fleet, fleet.worker(0) as worker:
        updates = fleet.shards[0].updates
        step = worker.push(1, 0)
        fleet.wait_for_size("waiting", 1)
        assert fleet.threads.submit(updates.advance, hold=True).result(STEP_SECS) == 1
        assert (step.done(), fleet.size("waiting")) == (False, 1)
        fleet.threads.submit(updates.release_barrier).result(STEP_SECS)
        assert step.result(STEP_SECS)[1].tolist() == [[1, 100]]
        assert fleet.size("waiting") == 0


def test_what_dead_workers_left_at_the_barrier_lets_nobody_through() -> None:
    """Several predecessors die while they wait for the first update; their successor waits for each of its steps."""
    with graph_fleet(fleet={"workers": 2, "max_workers": 8}) as fleet, fleet.worker(1) as other:
        for number in range(1, PREDECESSORS + 1):
            with fleet.worker(0) as killed:
                killed.push(1, 0)
                fleet.wait_for_size("waiting", number)
        with fleet.worker(0) as successor:
            for step in range(PREDECESSORS + 1):
                waiting = [successor.push(1, step), other.push(1, step)]
                fleet.advance()
                for worker in waiting:
                    assert worker.result(STEP_SECS)[1].tolist() == [[step + 1, 100]]
