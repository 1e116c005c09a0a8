"""Averaging mode makes the rounds of a replay in NumPy, counts its steps, and survives what sync mode survives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.graph_fleet import RUN, STEP_SECS, GraphFleet, InProcessWorker, graph_fleet
from support.numpy_optimizers import rule
from support.programs import exact_graph_program
from support.replay import Weights, batch, perceptron_gradient, replay, replay_rounds

from psfleet.errors import LostPeerError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from psfleet.tf import ShardVariables, container_name
from psfleet.tf.optimizer_slots import exchanged_slots
from worker_service.frontends import FrontEnd, front_end

BATCH_SIZE = 4
MAX_DIFFERENCE = 1e-5
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.2},
    "momentum": {"name": "momentum", "learning_rate": 0.05},
    "adam": {"name": "adam", "learning_rate": 0.01},
}


def sections(workers: int, local_steps: int, optimizer: str = "sgd", **fleet: int) -> dict[str, Any]:
    return {
        "fleet": {"workers": workers, **fleet},
        "update": {"mode": "averaging", "local_steps": local_steps, "bucket_bytes": 4096},
        "optimizer": OPTIMIZERS[optimizer],
        "train": {"steps": 100 * local_steps, "batch_size": BATCH_SIZE},
    }


def perceptron() -> FrontEnd:
    program = GraphProgram(loss=exact_graph_program.loss, train=exact_graph_program.train)
    fields = {"name": "sample", "program": "program:build", **sections(1, 1)}
    job: Job = parse_job(fields)
    return front_end(program, job, 1, 0)


def initial() -> Weights:
    return exact_graph_program.initial_weights() | exact_graph_program.initial_state()


@contextmanager
def averaging(num_ps: int, workers: int, *others: Any, **fleet: int) -> Iterator[tuple[GraphFleet, list[Any]]]:
    """A fleet that trains the perceptron, and its workers with open sessions."""
    made = graph_fleet(num_ps, perceptron(), initial(), **sections(workers, *others, **fleet))
    with made as running, ExitStack() as stack:
        yield running, [stack.enter_context(running.worker(index)) for index in range(workers)]


def local_round(worker: InProcessWorker, index: int, workers: int, steps: range) -> np.ndarray:
    for number in steps:
        own = batch(exact_graph_program.data(), index, workers, BATCH_SIZE, number)
        worker.session.update_locally(own, number)
    return worker.session.exchange(steps.start)


def train_round(fleet: GraphFleet, workers: list[InProcessWorker], steps: range) -> None:
    """All workers make the steps of a round."""
    made = [
        fleet.threads.submit(local_round, worker, index, len(workers), steps) for index, worker in enumerate(workers)
    ]
    fleet.advance()
    for each in made:
        assert each.result(STEP_SECS)[:, 0].tolist() == [steps.stop] * len(fleet.ps)


def values(fleet: GraphFleet) -> Weights:
    contents = fleet.contents()
    parameters = np.concatenate([content.parameters for content in contents])
    state = np.concatenate([content.state for content in contents])
    return fleet.layout.parameters.unpack(parameters) | fleet.layout.state.unpack(state)


def replayed(workers: int, local_steps: int, rounds: int, optimizer: str) -> Weights:
    return replay_rounds(
        initial(),
        perceptron_gradient,
        exact_graph_program.data(),
        workers=workers,
        batch_size=BATCH_SIZE,
        rounds=rounds,
        local_steps=local_steps,
        rule=lambda: rule(OPTIMIZERS[optimizer]),
        rate=lambda _: OPTIMIZERS[optimizer]["learning_rate"],
    )


def check(found: Weights, expected: Weights) -> None:
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=MAX_DIFFERENCE, err_msg=name)


@pytest.mark.parametrize(
    ("num_ps", "workers", "local_steps", "optimizer"),
    [
        (1, 3, 2, "sgd"),
        pytest.param(2, 2, 3, "momentum", marks=pytest.mark.extended),
        pytest.param(2, 3, 2, "adam", marks=pytest.mark.extended),
    ],
)
def test_rounds_are_those_of_a_replay(num_ps: int, workers: int, local_steps: int, optimizer: str) -> None:
    rounds = 10
    with averaging(num_ps, workers, local_steps, optimizer) as (fleet, members):
        for start in range(0, rounds * local_steps, local_steps):
            train_round(fleet, members, range(start, start + local_steps))
        check(values(fleet), replayed(workers, local_steps, rounds, optimizer))


@pytest.mark.extended
@pytest.mark.parametrize(("num_ps", "workers"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.extended)])
def test_one_local_step_of_sgd_is_sync_mode(num_ps: int, workers: int) -> None:
    steps = 100
    expected = replay(
        initial(),
        perceptron_gradient,
        exact_graph_program.data(),
        workers=workers,
        batch_size=BATCH_SIZE,
        steps=steps,
        rule=lambda: rule(OPTIMIZERS["sgd"]),
        rate=lambda _: 0.2,
    )
    with averaging(num_ps, workers, 1) as (fleet, members):
        for step in range(steps):
            train_round(fleet, members, range(step, step + 1))
        check(values(fleet), expected)


def lose_push(fleet: GraphFleet, shard: int) -> None:
    """Waits for the next push to a ps, and takes it away: that of a worker that is killed has not arrived."""
    with tf.Graph().as_default() as graph:
        container, limit = container_name(RUN, 1), fleet.job.fleet.worker_limit
        slots = exchanged_slots(fleet.job, None)
        variables = ShardVariables(fleet.layout, shard, limit, container, device="", slots=slots)
        push = variables.gradients.dequeue()
    with tf.compat.v1.Session(f"grpc://{fleet.ps[shard].data}", graph=graph) as session:
        session.run(push)


@pytest.mark.extended
@pytest.mark.parametrize(("ahead", "behind"), [(0, 1), (1, 0)])
def test_a_worker_that_dies_between_the_pushes_to_two_ps_costs_nothing(ahead: int, behind: int) -> None:
    """One ps has made the round: the successor starts from what it had before, with the scalars of ps 0."""
    with averaging(2, 2, 2, "adam") as (fleet, (dying, other)):
        train_round(fleet, [dying, other], range(2))
        lost = fleet.threads.submit(local_round, dying, 0, 2, range(2, 4))
        fleet.threads.submit(lose_push, fleet, behind).result(STEP_SECS)
        last = fleet.threads.submit(local_round, other, 1, 2, range(2, 4))
        fleet.advance(ahead)
        dying.session.close(wait_secs=0)
        with pytest.raises(LostPeerError):
            lost.result(STEP_SECS)
        with fleet.worker(0) as successor:
            assert successor.start.shards[[ahead, behind], 0].tolist() == [4, 2]
            repeat = fleet.threads.submit(local_round, successor, 0, 2, range(2, 4))
            fleet.advance(behind)
            for each in (repeat, last):
                assert each.result(STEP_SECS)[:, 0].tolist() == [4, 4]
        check(values(fleet), replayed(2, 2, 2, "adam"))
        for shard in fleet.shards:
            assert shard.counters().used[:2].tolist() == [2, 2]


def test_a_late_round_is_dropped_and_its_worker_continues_at_the_average() -> None:
    with averaging(1, 1, 2, spares=1) as (fleet, (fast,)), fleet.worker(1) as spare:
        made = fleet.threads.submit(local_round, fast, 0, 2, range(2))
        fleet.advance()
        made.result(STEP_SECS)
        late = fleet.threads.submit(local_round, spare, 1, 2, range(2))
        assert late.result(STEP_SECS)[:, 0].tolist() == [2]
        again = fleet.threads.submit(local_round, fast, 0, 2, range(2, 4))
        fleet.advance()
        again.result(STEP_SECS)
        counters = fleet.shards[0].counters()
        assert (counters.pushed[:2].tolist(), counters.used[:2].tolist()) == ([2, 1], [2, 0])
