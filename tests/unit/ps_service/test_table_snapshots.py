"""Snapshots of tables: exact whatever is updated while they are copied, and no update waits for a copy."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ps_service.shard_plan import ShardPlan
from ps_service.tables.shard_tables import ShardTables
from ps_service.tables.table_snapshot import TableSnapshot
from psfleet.job.job import parse_job
from psfleet.layout import EmbeddingContent, EmbeddingSpec, Layout, TensorSpec, initial_rows

ROWS, WIDTH = 2_000, 8
RATE, ONE = np.ones(1, np.float32), np.float32(1)
WAIT_SECS = 30.0


def shard_tables(content: EmbeddingContent, rows: int = ROWS, width: int = WIDTH) -> ShardTables:
    optimizer = {"name": "adagrad", "learning_rate": 1.0}
    fields = {"name": "t", "program": "p:b", "optimizer": optimizer, "train": {"steps": 9, "batch_size": 1}}
    job = parse_job({**fields, "tables": {"user": {"rows": rows}}, "update": {"mode": "async"}})
    spec = EmbeddingSpec("user", "user", rows, width, "uniform", 0.5, 1)
    layout = Layout.plan([TensorSpec("w", (3,))], [], [], 1, 4096, embeddings=[spec])
    return ShardTables(ShardPlan("run", 1, 0, job, layout, None), 0, {"user": content})


def update(tables: ShardTables, number: int, ids: np.ndarray) -> None:
    values = np.full((len(ids), WIDTH), number % 7 + 1, np.float32)
    tables.apply([tables.stage(0, number, [(ids, values)])], number, RATE, ONE)


def assert_equal(found: EmbeddingContent, expected: EmbeddingContent) -> None:
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.slots["accumulator"], expected.slots["accumulator"])


def test_rows_that_change_before_or_after_they_are_copied_are_those_of_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = shard_tables(EmbeddingContent.empty(WIDTH))
    update(tables, 0, np.arange(0, 100))
    tables.take_snapshot()
    expected = tables.read_snapshot()["user"]
    copy = TableSnapshot.copy

    def copy_between_updates(snapshot: TableSnapshot) -> EmbeddingContent:
        update(tables, 1, np.arange(50, 150))
        copied = copy(snapshot)
        update(tables, 2, np.arange(20, 70))
        return copied

    tables.take_snapshot()
    monkeypatch.setattr(TableSnapshot, "copy", copy_between_updates)
    assert_equal(tables.read_snapshot()["user"], expected)
    monkeypatch.undo()
    tables.take_snapshot()
    assert len(tables.read_snapshot()["user"].ids) == 150, "rows that were created meanwhile are in the next one"


def test_every_snapshot_is_exact_while_another_thread_updates() -> None:
    tables, chance = shard_tables(EmbeddingContent.empty(WIDTH)), np.random.default_rng(3)
    every, accumulator = np.arange(ROWS), np.full((ROWS, WIDTH), 0.1 + 1e-7, np.float32)
    expected, reads = [], []
    with ThreadPoolExecutor(1) as threads:
        for number in range(400):
            ids = chance.choice(ROWS, 300, replace=False)
            update(tables, number, ids)
            accumulator[ids] += np.float32((number % 7 + 1) ** 2)
            if not reads or reads[-1].done():
                tables.take_snapshot()
                expected.append((tables.read(0, every, number), accumulator.copy()))
                reads.append(threads.submit(tables.read_snapshot))
    assert len(reads) > 5, "too few snapshots were read during the updates"
    for read, (rows, slots) in zip(reads, expected, strict=True):
        found = read.result()["user"]
        np.testing.assert_array_equal(found.rows, rows[found.ids])
        np.testing.assert_array_equal(found.slots["accumulator"], slots[found.ids])


def test_updates_continue_while_a_snapshot_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = shard_tables(EmbeddingContent.empty(WIDTH))
    update(tables, 0, np.arange(10))
    tables.take_snapshot()
    is_updated, copy = threading.Event(), TableSnapshot.copy

    def copy_late(snapshot: TableSnapshot) -> EmbeddingContent:
        assert is_updated.wait(WAIT_SECS), "the update waits for the copy"
        return copy(snapshot)

    monkeypatch.setattr(TableSnapshot, "copy", copy_late)
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(tables.read_snapshot)
        update(tables, 1, np.arange(20))
        is_updated.set()
        assert len(read.result()["user"].ids) == 10


def test_the_time_to_take_a_snapshot_does_not_grow_with_the_table() -> None:
    rows, width = 100_000, 64
    ids = np.arange(rows)
    content = EmbeddingContent(ids, np.zeros((rows, width), np.float32), {"accumulator": np.ones((rows, width), "f4")})
    tables = shard_tables(content, rows, width)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        tables.take_snapshot()
        took.append(time.perf_counter() - began)
        tables.read_snapshot()
    copying = time.perf_counter() - began - took[-1]
    assert min(took) < copying / 20, f"taking {min(took):.4f} s, copying {copying:.4f} s"


def test_a_restored_table_has_no_other_rows_than_those_of_its_content() -> None:
    spec = EmbeddingSpec("user", "user", ROWS, WIDTH, "uniform", 0.5, 1)
    ids = np.array([7, 3])
    slots = {"accumulator": np.full((2, WIDTH), 4, np.float32)}
    tables = shard_tables(EmbeddingContent(ids, np.zeros((2, WIDTH), np.float32), slots))
    assert not tables.read(0, ids, 0).any()
    np.testing.assert_array_equal(tables.read(0, np.array([5]), 0), initial_rows(spec, np.array([5])))
