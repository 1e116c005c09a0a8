"""A snapshot holds the step at which it was taken, whatever is applied before it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graph_fleet import STEP_SECS, InProcessWorker, graph_fleet

from psfleet.checkpoint.parts import ShardContent


def values_of(content: ShardContent) -> dict[str, np.ndarray]:
    """Copies of everything that updates change, by name."""
    slots = {f"slot {name}": vector for name, vector in content.slots.items()}
    scalars = {f"scalar {name}": np.asarray(value) for name, value in content.scalars.items()}
    return {name: np.copy(value) for name, value in {"w": content.parameters, **slots, **scalars}.items()}


@pytest.mark.parametrize(("mode", "name"), [("sync", "sgd"), ("sync", "adamw"), ("async", "adam")])
def test_a_snapshot_does_not_change_with_later_updates(mode: str, name: str) -> None:
    """Without slots and scalars of the optimizer, and with both."""
    optimizer = {"learning_rate": 0.1, "name": name}
    with graph_fleet(fleet={"workers": 1}, optimizer=optimizer, update={"mode": mode}) as fleet:
        [shard] = fleet.shards

        def update(worker: InProcessWorker, local_step: int) -> None:
            step = worker.push(1, local_step)
            fleet.advance()
            step.result(STEP_SECS)

        with fleet.worker(0) as worker:
            update(worker, 0)
            shard.take_snapshot()
            before = values_of(shard.read_snapshot())
            shard.take_snapshot()
            update(worker, 1)
            update(worker, 2)
            content = shard.read_snapshot()
        np.testing.assert_equal(values_of(content), before)
        shard.take_snapshot()
        assert (values_of(shard.read_snapshot())["w"] != before["w"]).any()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_first_checkpoint_holds_the_workers_for_no_graph_that_is_yet_to_be_prepared(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow prepares each set of operations at the first `Session.run`, which took 0.2 s of the last step."""
    with graph_fleet(fleet={"workers": 1}, update={"mode": mode}) as fleet, fleet.worker(0) as worker:
        [shard] = fleet.shards
        step = worker.push(1, 0)
        fleet.advance()
        step.result(STEP_SECS)
        step, run = worker.push(1, 1), shard._session._call_tf_sessionrun
        runs: list[Any] = []

        def recorded(*args: Any) -> Any:
            runs.append(args)
            return run(*args)

        monkeypatch.setattr(shard._session, "_call_tf_sessionrun", recorded)
        assert shard.updates.advance(hold=True) == 2
        shard.take_snapshot()
        shard.updates.release_barrier()
        step.result(STEP_SECS)
        # In async mode no step is held, and the update is that of every step.
        assert len(runs) == (0 if mode == "sync" else 1)
        np.testing.assert_array_equal(shard.read_snapshot().parameters[:1], fleet.weights()[:1])


def test_a_snapshot_that_was_read_is_not_kept() -> None:
    with graph_fleet(fleet={"workers": 1}) as fleet, fleet.worker(0) as worker:
        [shard] = fleet.shards
        shard.take_snapshot()
        assert not shard.read_snapshot().parameters.any()
        next_read = fleet.threads.submit(shard.read_snapshot)
        step = worker.push(1, 0)
        fleet.advance()
        step.result(STEP_SECS)
        shard.take_snapshot()
        assert next_read.result(STEP_SECS).parameters.any()
