"""Steps of several losses: each moves its own weights by its own optimizer, and leaves every bit of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from support.gan_replay import Replay, replayed
from support.graph_fleet import STEP_SECS, GraphFleet, InProcessWorker, graph_fleet
from support.programs import tiny_gan_program as tiny
from support.replay import batch
from support.rows import first_rows

from psfleet.checkpoint.parts import ShardContent
from psfleet.job.job import parse_job
from psfleet.layout.buckets import buckets
from worker_service.frontends.graph import GraphFrontEnd

BATCH_SIZE, STEPS = 8, 14
ADAM, MOMENTUM = {"name": "adam", "learning_rate": 0.02}, {"name": "momentum", "learning_rate": 0.05}
OPTIMIZERS = {"discriminator": ADAM, "generator": MOMENTUM}
MAX_DIFFERENCE = 1e-5


@contextmanager
def fleet_of(num_ps: int, workers: int, **sections: Any) -> Iterator[GraphFleet]:
    """A fleet that trains `tiny_gan_program`, in buckets of 16 elements."""
    train = {"steps": 100, "batch_size": BATCH_SIZE, "alternate": tiny.ALTERNATE, **sections.pop("train", {})}
    fields: dict[str, Any] = {"optimizers": OPTIMIZERS, "fleet": {"workers": workers}, "train": train, **sections}
    job = parse_job({"name": "tiny", "program": "program:build", **fields})
    front = GraphFrontEnd(tiny.build(), job, 1, 0)
    with graph_fleet(num_ps, front, front.initial_values(), optimizer=None, **fields) as fleet:
        yield fleet


def contents(fleet: GraphFleet) -> list[ShardContent]:
    for shard in fleet.shards:
        shard.take_snapshot()
    return [shard.read_snapshot() for shard in fleet.shards]


def values_of(fleet: GraphFleet) -> dict[str, np.ndarray]:
    found = contents(fleet)
    named = fleet.layout.parameters.unpack(np.concatenate([content.parameters for content in found]))
    return named | fleet.layout.state.unpack(np.concatenate([content.state for content in found]))


def bits_of(fleet: GraphFleet, loss: str) -> dict[str, bytes]:
    """Weights, slots and scalars of a loss, and the state under its scope, as bytes."""
    found = contents(fleet)
    parts: dict[str, np.ndarray] = {}
    for slot in ("", *found[0].slots):
        vector = np.concatenate([content.slots[slot] if slot else content.parameters for content in found])
        parts |= {f"{slot} {name}": value for name, value in fleet.layout.parameters.unpack(vector).items()}
    state = fleet.layout.state.unpack(np.concatenate([content.state for content in found]))
    parts |= {f" {name}": value for name, value in state.items()}
    own = {name: value.tobytes() for name, value in parts.items() if name.partition(" ")[2].startswith(f"{loss}/")}
    scalars = {f"{at} {name}": value for at, content in enumerate(found) for name, value in content.scalars.items()}
    own |= {name: np.asarray(value).tobytes() for name, value in scalars.items() if f" {loss}." in name}
    return own


def make_step(fleet: GraphFleet, workers: Sequence[InProcessWorker], step: int) -> None:
    """A sync step of all workers, each with its batch."""
    pushed = []
    for index, worker in enumerate(workers):
        arrays = batch(tiny.data(), index, len(workers), BATCH_SIZE, step)
        pushed.append(fleet.threads.submit(worker.session.train, arrays, step, step))
    fleet.advance()
    for each in pushed:
        each.result(STEP_SECS)


def distance(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[name] - expected[name]).max()) for name in expected)


@pytest.mark.parametrize(("num_ps", "num_workers"), first_rows([(2, 2), (1, 1)]))
def test_sync_steps_are_those_of_a_replay_and_each_loss_leaves_the_bits_of_the_other(
    num_ps: int, num_workers: int
) -> None:
    with fleet_of(num_ps, num_workers) as fleet:
        with ExitStack() as stack:
            workers = [stack.enter_context(fleet.worker(index)) for index in range(num_workers)]
            for step in range(STEPS):
                loss = tiny.ALTERNATE[step % 3]
                (other,) = {*tiny.ALTERNATE} - {loss}
                before, moved = bits_of(fleet, other), bits_of(fleet, loss)
                make_step(fleet, workers, step)
                assert bits_of(fleet, other) == before, f"step {step} of {loss} changed something of {other}"
                assert len(before) > 3
                assert {name for name, value in bits_of(fleet, loss).items() if value != moved[name]} >= {
                    f" {name}" for name in tiny.SHAPES if name.startswith(loss)
                }
            assert set(workers[0].session.losses) == {"discriminator", "generator"}
        expected = replayed(OPTIMIZERS, tiny.ALTERNATE, num_workers, BATCH_SIZE, STEPS)
        assert distance(values_of(fleet), expected) <= MAX_DIFFERENCE
        assert distance(tiny.initial_weights(), {name: expected[name] for name in tiny.SHAPES}) > 0.05


def test_a_ps_without_weights_of_a_loss_has_its_scalars_and_slots_all_the_same() -> None:
    """A checkpoint can then be restored by another number of ps."""
    with fleet_of(2, 1) as fleet:
        layout = fleet.layout.parameters
        assert {bucket.loss for bucket in buckets(layout, 1)} == {1}, "both ps have weights of the discriminator"
        with fleet.worker(0) as worker:
            make_step(fleet, [worker], 0)
        first, second = contents(fleet)
        assert first.scalars == second.scalars
        assert set(first.scalars) == {"discriminator.beta1_power", "discriminator.beta2_power"}
        assert first.slots.keys() == second.slots.keys()


def test_in_async_mode_the_loss_of_a_gradient_follows_from_its_number() -> None:
    replay = Replay(OPTIMIZERS)
    with fleet_of(2, 1, update={"mode": "async"}) as fleet, fleet.worker(0) as worker:
        # The number of the worker's gradient; updates before it by others have made the global step a higher one.
        for step, number in enumerate([0, 2, 3, 5, 7, 8]):
            arrays = batch(tiny.data(), 0, 1, BATCH_SIZE, number)
            pushed = fleet.threads.submit(worker.session.train, arrays, step, number)
            fleet.advance()
            pushed.result(STEP_SECS)
            replay.step(tiny.ALTERNATE[number % 3], [arrays])
        assert distance(values_of(fleet), replay.values) <= MAX_DIFFERENCE


def test_accumulated_microbatches_are_one_batch_of_the_same_loss() -> None:
    # The state moves with each microbatch, so that only the first step of each loss is that of the whole batch.
    with fleet_of(1, 1, train={"batch_size": BATCH_SIZE // 2, "accumulate": 2}) as fleet, fleet.worker(0) as worker:
        for step in range(2):
            make_step(fleet, [worker], step)
        found = values_of(fleet)
    expected = replayed(OPTIMIZERS, tiny.ALTERNATE, 1, BATCH_SIZE, 2)
    trained = {name: found[name] for name in tiny.SHAPES}
    assert distance(trained, {name: expected[name] for name in tiny.SHAPES}) <= MAX_DIFFERENCE


def test_each_loss_is_clipped_and_decays_as_its_optimizer_says() -> None:
    sgd = {"name": "sgd", "learning_rate": 0.1}
    rules = {"discriminator": sgd | {"clip_norm": 1e-3}, "generator": sgd | {"weight_decay": 1.0}}
    with fleet_of(1, 1, optimizers=rules, train={"alternate": ["discriminator", "generator"]}) as fleet:
        with fleet.worker(0) as worker:
            start = values_of(fleet)
            make_step(fleet, [worker], 0)
            clipped = values_of(fleet)
            make_step(fleet, [worker], 1)
            decayed = values_of(fleet)
        moves = [clipped[name] - start[name] for name in tiny.SHAPES]
        assert np.sqrt(sum(np.sum(move**2) for move in moves)) == pytest.approx(1e-4, rel=1e-3)
        plain = Replay({"discriminator": sgd, "generator": sgd})
        plain.values |= {name: value.astype(np.float64) for name, value in clipped.items()}
        plain.step("generator", [batch(tiny.data(), 0, 1, BATCH_SIZE, 1)])
        expected = plain.values["generator/kernel"] - 0.1 * clipped["generator/kernel"]
        assert np.abs(decayed["generator/kernel"] - expected).max() <= MAX_DIFFERENCE
