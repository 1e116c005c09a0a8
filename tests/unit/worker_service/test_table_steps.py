"""Steps of a worker with an embedding table on two ps, in this process, against a replay with a dense table."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.graph_fleet import STEP_SECS, GraphFleet, InProcessWorker, graph_fleet
from support.numpy_optimizers import rule
from support.programs import table_program
from support.programs.table_program import NAME
from support.replay import Batch, Weights, batch, replay

from psfleet.checkpoint.parts import ShardContent
from psfleet.errors import LostPeerError
from psfleet.job.job import parse_job
from psfleet.layout import EmbeddingContent, dense_table, initial_rows
from worker_service.frontends import FrontEnd, front_end

ROWS, BATCH_SIZE, STEPS = 100, 10, 12
ADAGRAD = {"name": "adagrad", "learning_rate": 0.1}
SECTIONS = {
    "optimizer": ADAGRAD,
    "tables": {"user": {"rows": ROWS}},
    "train": {"steps": 100, "batch_size": BATCH_SIZE, "seed": 7},
}


def batch_of(number: int) -> Batch:
    return batch(table_program.data(), 0, 1, BATCH_SIZE, number)


def step(fleet: GraphFleet, worker: InProcessWorker, number: int) -> None:
    """Makes the step of a number."""
    made = worker.threads.submit(worker.session.train, batch_of(number), number, number)
    fleet.advance()
    made.result(STEP_SECS)


def replayed(initial: Weights, steps: int) -> Weights:
    return replay(
        initial,
        table_program.gradient,
        table_program.data(),
        workers=1,
        batch_size=BATCH_SIZE,
        steps=steps,
        rule=lambda: rule(ADAGRAD),
        rate=lambda _: 0.1,
    )


def assert_replayed(fleet: GraphFleet, contents: list[ShardContent], front: FrontEnd, steps: int) -> None:
    """What the shards have is what a dense model has after the steps."""
    (spec,) = front.embeddings
    table = EmbeddingContent.joined([content.tables[NAME] for content in contents], spec.width)
    parameters = np.concatenate([content.parameters for content in contents])
    found = {**fleet.layout.parameters.unpack(parameters), NAME: dense_table(spec, [(table.ids, table.rows)])}
    expected = replayed({**front.initial_values(), NAME: initial_rows(spec, np.arange(ROWS))}, steps)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


@functools.cache
def table_front_end() -> FrontEnd:
    return front_end(table_program.build(ROWS), parse_job({"name": "a", "program": "p:b", **SECTIONS}), 1, 0)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_moves_rows_and_weights_as_a_dense_model(mode: str) -> None:
    front = table_front_end()
    with graph_fleet(2, front, front.initial_values(), update={"mode": mode}, **SECTIONS) as fleet:
        with fleet.worker(0) as worker:
            for number in range(STEPS - 1):
                step(fleet, worker, number)
        # Another session of the worker continues.
        with fleet.worker(0) as worker:
            step(fleet, worker, STEPS - 1)
        contents = fleet.contents()
    assert_replayed(fleet, contents, front, STEPS)
    assert [set((content.tables[NAME].ids % 2).tolist()) for content in contents] == [{0}, {1}]


def test_a_worker_that_repeats_a_step_reads_the_rows_before_it() -> None:
    """The first ps has made the step in which the worker was lost, and the second one has not."""
    front, lost_at = table_front_end(), 3
    with graph_fleet(2, front, front.initial_values(), **SECTIONS) as fleet:
        with fleet.worker(0) as worker:
            for number in range(lost_at):
                step(fleet, worker, number)
            lost = worker.threads.submit(worker.session.train, batch_of(lost_at), lost_at, lost_at)
            fleet.advance(0)
            worker.session.close(wait_secs=0)
            with pytest.raises(LostPeerError):
                lost.result(STEP_SECS)
        with fleet.worker(0) as worker:
            repeated = worker.threads.submit(worker.session.train, batch_of(lost_at), lost_at, lost_at)
            fleet.wait_for_size("gradients", 1)
            fleet.advance(1)
            repeated.result(STEP_SECS)
            step(fleet, worker, lost_at + 1)
        contents = fleet.contents()
    assert_replayed(fleet, contents, front, lost_at + 2)


@pytest.mark.parametrize("update", [{"mode": "sync"}, {"mode": "async"}, {"mode": "ssp", "bound": 1}])
def test_rows_that_a_replaced_process_stages_late_do_not_enter_the_push_of_its_successor(update: Any) -> None:
    front = table_front_end()
    with graph_fleet(1, front, front.initial_values(), update=update, **SECTIONS) as fleet:
        with fleet.worker(0) as worker:
            made = worker.threads.submit(worker.session.train, batch_of(0), 0, 0)
            fleet.wait_for_size("gradients", 1)
            late = [(np.array([3]), np.full((1, table_program.WIDTH), 50, np.float32))]
            fleet.shards[0]._tables.stage(0, 0, late)
            fleet.advance()
            made.result(STEP_SECS)
        contents = fleet.contents()
        assert not fleet.shards[0]._tables._staged
    assert_replayed(fleet, contents, front, 1)


def test_a_ps_forgets_the_rows_of_gradients_that_it_drops() -> None:
    front, stale = table_front_end(), {"mode": "async", "stale": {"policy": "drop", "bound": 0}}
    sections = {**SECTIONS, "fleet": {"workers": 2}, "update": stale}
    with graph_fleet(1, front, front.initial_values(), **sections) as fleet:
        with fleet.worker(0) as worker, fleet.worker(1) as late:
            step(fleet, worker, 0)
            rows = fleet.contents()[0].tables[NAME].rows
            step(fleet, late, 0)
        (content,) = fleet.contents()
        np.testing.assert_array_equal(content.tables[NAME].rows, rows)
        assert fleet.shards[0].counters().used.tolist()[:2] == [1, 0]
        assert not fleet.shards[0]._tables._staged


def late_step(policy: str) -> tuple[EmbeddingContent, np.ndarray]:
    """The table after step 0 of a worker and one of another that is late by it, and the ids of the first."""
    front = table_front_end()
    stale = {"mode": "async", "stale": {"policy": policy, "bound": 1}}
    sections = {**SECTIONS, "optimizer": {"name": "sgd", "learning_rate": 0.1}, "fleet": {"workers": 2}}
    with graph_fleet(1, front, front.initial_values(), **sections, update=stale) as fleet:
        with fleet.worker(0) as worker, fleet.worker(1) as late:
            step(fleet, worker, 0)
            ids = fleet.contents()[0].tables[NAME].ids
            made = late.threads.submit(late.session.train, batch_of(1), 0, 1)
            fleet.advance()
            made.result(STEP_SECS)
        return fleet.contents()[0].tables[NAME], ids


def test_rows_of_a_late_gradient_move_at_the_lower_rate() -> None:
    (plain, before), (lowered, _) = late_step("apply"), late_step("lower_rate")
    np.testing.assert_array_equal(plain.ids, lowered.ids)
    is_late = ~np.isin(plain.ids, before)
    assert is_late.any()
    spec = table_front_end().embeddings[0]
    initial = initial_rows(spec, plain.ids[is_late])
    np.testing.assert_allclose(lowered.rows[is_late] - initial, (plain.rows[is_late] - initial) / 2, atol=1e-6)
    assert np.abs(plain.rows[is_late] - initial).max() > 1e-4


def test_a_table_can_have_a_learning_rate_of_its_own() -> None:
    front, found = table_front_end(), []
    sgd = {"name": "sgd", "learning_rate": 0.1}
    for own in (None, 0.025):
        sections = {**SECTIONS, "optimizer": sgd, "tables": {"user": {"rows": ROWS, "learning_rate": own}}}
        with graph_fleet(1, front, front.initial_values(), **sections) as fleet, fleet.worker(0) as worker:
            step(fleet, worker, 0)
            found.append(fleet.contents()[0])
    plain, slow = found
    initial = initial_rows(front.embeddings[0], plain.tables[NAME].ids)
    moved = plain.tables[NAME].rows - initial
    assert np.abs(moved).max() > 1e-4
    np.testing.assert_allclose(slow.tables[NAME].rows - initial, moved / 4, atol=1e-6)
    np.testing.assert_array_equal(slow.parameters, plain.parameters, "the dense weights have that of the job")


def test_the_program_of_a_table_has_summaries_of_its_own() -> None:
    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        found = table_program.loss(batch, ROWS)
        v1.summary.scalar("mean_square", found)
        return found

    sections = {**SECTIONS, "tables": {NAME: {"rows": ROWS}}}
    job = parse_job({"name": "a", "program": "p:b", **sections})
    front = front_end(replace(table_program.build(ROWS, "graph"), loss=loss), job, 1, 0)
    with graph_fleet(2, front, front.initial_values(), **sections) as fleet, fleet.worker(0) as worker:
        step(fleet, worker, 0)
        before = v1.Summary.FromString(worker.session.summaries(batch_of(1)) or b"")
        made = worker.threads.submit(worker.session.train, batch_of(1), 1, 1)
        fleet.advance()
        assert before.value[0].simple_value == made.result(STEP_SECS)[0], "the rows and weights before the step"
