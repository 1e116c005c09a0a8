"""Tables on a ps: rules against the dense optimizers, rows of any number of ps, memory, and repeated pushes."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service.shard_plan import ShardPlan
from ps_service.tables.rules import row_rule
from ps_service.tables.shard_tables import REGISTRY, ShardTables
from ps_service.tables.table import Table
from psfleet.errors import BadJobError
from psfleet.job.job import parse_job
from psfleet.job.tables import rule_of
from psfleet.layout import EmbeddingContent, EmbeddingSpec, Layout, TensorSpec, initial_rows
from psfleet.tf import optimizers
from psfleet.tf.table_calls import apply_rows, read_rows, stage_rows

SPEC = EmbeddingSpec("user", "user/embeddings", rows=10, width=3, init="uniform", scale=0.5, seed=1)
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "learning_rate": 0.3},
    {"name": "adagrad", "learning_rate": 0.3, "initial_accumulator": 0.2, "epsilon": 1e-3},
    {"name": "adam", "learning_rate": 0.1, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4},
]
STEPS = 100
RATE = np.ones(1, np.float32)


def job_of(optimizer: dict[str, Any], **sections: Any) -> Any:
    fields = {"name": "t", "program": "p:b", "optimizer": optimizer, "train": {"steps": 9, "batch_size": 1}}
    return parse_job({**fields, "tables": {"user": {"rows": SPEC.rows}}, **sections})


def table_of(optimizer: dict[str, Any], shard: int = 0, num_ps: int = 1, keeps_previous: bool = False) -> Table:
    job = job_of(optimizer)
    rule = row_rule(rule_of(job.tables["user"], job.rule))
    return Table(SPEC, shard, num_ps, rule, keeps_previous)


def content_of(table: Table) -> EmbeddingContent:
    content = table.take_snapshot().copy()
    table.end_snapshot()
    return content


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: str(each["name"]))
def test_rows_of_every_step_move_as_those_of_the_dense_optimizer(optimizer: dict[str, Any]) -> None:
    gradients = np.random.default_rng(0).normal(size=(STEPS, SPEC.rows, SPEC.width)).astype(np.float32)
    ids, table = np.arange(SPEC.rows), table_of(optimizer)
    for step in range(STEPS):
        table.update([(ids, gradients[step])], np.float32(optimizer["learning_rate"]), step + 1)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=initial_rows(SPEC, ids), use_resource=True)
        gradient = v1.placeholder(tf.float32, variable.shape)
        rule = job_of(optimizer).rule
        update = optimizers.build(rule, tf.constant(rule.learning_rate)).apply_gradients([(gradient, variable)])
        session.run(v1.global_variables_initializer())
        for step in range(STEPS):
            session.run(update, {gradient: gradients[step]})
        expected = session.run(variable)
    assert np.abs(expected - initial_rows(SPEC, ids)).max() > 0.1
    np.testing.assert_allclose(table.read(ids), expected, atol=1e-5)


def test_initial_rows_do_not_depend_on_the_others() -> None:
    every = initial_rows(SPEC, np.arange(SPEC.rows))
    np.testing.assert_array_equal(initial_rows(SPEC, np.array([7, 2])), every[[7, 2]])
    assert np.abs(every).max() <= SPEC.scale
    assert len(np.unique(every)) == every.size
    other = EmbeddingSpec(**{**SPEC.to_dict(), "seed": 2})
    assert not np.isin(initial_rows(other, np.arange(SPEC.rows)), every).any()


def test_initial_rows_are_uniform() -> None:
    spec = EmbeddingSpec(**{**SPEC.to_dict(), "rows": 20_000})
    found, _ = np.histogram(initial_rows(spec, np.arange(spec.rows)), bins=10, range=(-spec.scale, spec.scale))
    np.testing.assert_allclose(found, spec.rows * spec.width / 10, rtol=0.05)


@pytest.mark.parametrize("num_ps", [1, 2, 3, 11])
def test_rows_that_no_gradient_has_keep_their_bits_on_any_number_of_ps(num_ps: int) -> None:
    ids = np.array([1, 4, 6, 9])
    values = np.ones((len(ids), SPEC.width), np.float32)
    found = np.empty((SPEC.rows, SPEC.width), np.float32)
    for shard in range(num_ps):
        table = table_of(OPTIMIZERS[0], shard, num_ps)
        own = ids % num_ps == shard
        table.update([(ids[own], values[own])], np.float32(0.3), 1)
        every = np.arange(shard, SPEC.rows, num_ps)
        found[every] = table.read(every)
        assert sorted(content_of(table).ids.tolist()) == ids[own].tolist()
    expected = initial_rows(SPEC, np.arange(SPEC.rows))
    expected[ids] -= np.float32(0.3) * values
    np.testing.assert_array_equal(found, expected)


def test_a_mean_is_over_all_gradients_also_of_rows_that_only_one_has() -> None:
    table = table_of(OPTIMIZERS[0])
    ones = np.ones((2, SPEC.width), np.float32)
    table.update([(np.array([3, 5]), ones), (np.array([5, 8]), 2 * ones)], np.float32(1), 1)
    moved = initial_rows(SPEC, np.arange(SPEC.rows)) - table.read(np.arange(SPEC.rows))
    np.testing.assert_allclose(moved[[3, 5, 8], 0], [0.5, 1.5, 1.0], atol=1e-6)


def test_the_rows_before_the_last_update_are_kept() -> None:
    table = table_of(OPTIMIZERS[1], keeps_previous=True)
    every = np.arange(SPEC.rows)
    for number, ids in enumerate(([2, 3], [3, 4]), start=1):
        before = table.read(every)
        table.update([(np.array(ids), np.ones((2, SPEC.width), np.float32))], np.float32(1), number)
        np.testing.assert_array_equal(table.read(every, before_last=True), before)
        assert (table.read(every) != before).any(axis=1).nonzero()[0].tolist() == ids


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: str(each["name"]))
def test_a_restored_table_continues(optimizer: dict[str, Any]) -> None:
    ids, ones = np.array([8, 0, 5]), np.ones((3, SPEC.width), np.float32)
    table, restored = table_of(optimizer), table_of(optimizer)
    table.update([(ids, ones)], np.float32(0.1), 1)
    assert restored.restore(content_of(table))
    for each in (table, restored):
        each.update([(ids[:2], ones[:2])], np.float32(0.1), 2)
    np.testing.assert_array_equal(restored.read(np.arange(SPEC.rows)), table.read(np.arange(SPEC.rows)))


def test_a_table_of_another_optimizer_keeps_its_rows_and_starts_without_state() -> None:
    table, other = table_of(OPTIMIZERS[1]), table_of(OPTIMIZERS[2])
    table.update([(np.array([4]), np.ones((1, SPEC.width), np.float32))], np.float32(0.1), 1)
    assert not other.restore(content_of(table))
    np.testing.assert_array_equal(other.read(np.array([4])), table.read(np.array([4])))
    assert not content_of(other).slots["m"].any()


def test_rows_that_were_never_updated_take_no_memory() -> None:
    spec = EmbeddingSpec("big", "big", rows=200_000_000, width=64, init="zeros", scale=1, seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = Table(spec, 0, 1, row_rule(rule_of(job_of(OPTIMIZERS[1]).tables["user"], job_of(OPTIMIZERS[1]).rule)), True)
    ids = np.arange(0, spec.rows, spec.rows // 1000)
    table.update([(ids, np.ones((len(ids), spec.width), np.float32))], np.float32(1), 1)
    assert not table.read(ids + 1).any()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert table.row_bytes == table.slot_bytes == len(ids) * spec.width * 4
    assert grown < 50_000, f"the process has grown by {grown} KiB, and a dense table has 100 million"


@pytest.mark.parametrize("rows", [10**13, 2**62])
def test_a_table_that_no_address_space_has_is_refused(rows: int) -> None:
    spec = EmbeddingSpec("big", "big", rows=rows, width=4, init="zeros", scale=1, seed=0)
    job = job_of(OPTIMIZERS[0])
    with pytest.raises(BadJobError, match=rf"table big has {rows // 2} rows of 4 on ps 1, expected no more than fit"):
        Table(spec, 1, 2, row_rule(rule_of(job.tables["user"], job.rule)), False)


def shard_tables(**sections: Any) -> ShardTables:
    job = job_of(OPTIMIZERS[0], **sections)
    layout = Layout.plan([TensorSpec("w", (3,))], [], [], job.fleet.ps, 4096, embeddings=[SPEC])
    plan = ShardPlan("run", 1, 0, job, layout, None)
    return ShardTables(plan, 4, {SPEC.name: EmbeddingContent.empty(SPEC.width)})


def gradient(value: float) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.array([2]), np.full((1, SPEC.width), value, np.float32))]


def moved(tables: ShardTables) -> float:
    row = initial_rows(SPEC, np.array([2])) - tables.read(0, np.array([2]), 9)
    return round(float(row[0, 0]), 5)


def test_a_repeated_push_counts_once_and_one_that_is_not_admitted_never() -> None:
    tables = shard_tables()
    pushes = ((0, 50.0), (1, 3.0), (2, 50.0), (0, 1.0))
    _, second, _, repeated = [tables.stage(worker, 4, gradient(value)) for worker, value in pushes]
    tables.apply([repeated, second], 4, RATE, np.float32(1))
    assert moved(tables) == 2.0
    tables.stage(2, 4, gradient(50.0))
    tables.apply([tables.stage(0, 5, gradient(1.0))], 5, RATE, np.float32(1))
    assert moved(tables) == 3.0
    assert not tables._staged, "gradients that no update will apply take memory"


@pytest.mark.parametrize("spares", [0, 1])
def test_a_worker_that_is_a_step_behind_one_of_two_ps_reads_the_rows_of_its_step(spares: int) -> None:
    """The other ps may still take its gradient."""
    tables = shard_tables(fleet={"ps": 2, "workers": 2, "spares": spares})
    tables.apply([tables.stage(worker, 4, gradient(1.0)) for worker in (0, 1)], 4, RATE, np.float32(1))
    np.testing.assert_array_equal(tables.read(0, np.array([2]), 4), initial_rows(SPEC, np.array([2])))
    assert moved(tables) == 1.0


def test_a_gradient_that_was_not_staged_is_an_error() -> None:
    with pytest.raises(KeyError):
        shard_tables().apply([1], 4, RATE, np.float32(1))


def test_async_mode_applies_a_number_of_a_worker_once_whatever_the_step() -> None:
    tables = shard_tables(update={"mode": "async"})
    first, other = tables.stage(1, 7, gradient(1.0)), tables.stage(0, 3, gradient(4.0))
    tables.apply([first], 4, RATE, np.float32(1))
    assert moved(tables) == 1.0
    with pytest.raises(KeyError):
        tables.apply([tables.stage(1, 7, gradient(1.0))], 5, RATE, np.float32(1))
    tables.apply([other], 5, RATE, np.float32(0.5))
    assert moved(tables) == 3.0, "the factor of the policy for stale gradients is 0.5"


def test_a_late_repetition_that_is_dropped_brings_no_applied_gradient_back() -> None:
    """It has a lower number than the newest that was applied, as those of a process that was replaced."""
    tables = shard_tables(update={"mode": "async"})
    tables.apply([tables.stage(1, 7, gradient(1.0))], 4, RATE, np.float32(1))
    tables.drop(1, 5)
    tables.stage(1, 7, gradient(1.0))
    assert not tables._staged


def test_operations_find_the_tables_of_a_shard_until_it_is_closed() -> None:
    tables = shard_tables()
    REGISTRY.add(tables)
    with tf.Graph().as_default(), v1.Session() as session:
        ids = np.array([5, 2])
        rows = read_rows(tables.name, 0, SPEC, tf.constant(ids), tf.constant(4, tf.int64))
        pairs = [(tf.constant(np.array([2])), tf.ones([1, SPEC.width]))]
        step = tf.constant(4, tf.int64)
        applied = apply_rows(tables.name, stage_rows(tables.name, 1, step, pairs), step, tf.constant([1.0]))
        np.testing.assert_array_equal(session.run(rows), initial_rows(SPEC, ids))
        session.run(applied)
        assert moved(tables) == 1.0
        REGISTRY.remove(tables)
        with pytest.raises(tf.errors.UnknownError, match="the tables of run/1/shard_0 are gone"):
            session.run(rows)
