"""The tables of a shard, and the calls of workers and of the shard's own updates."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ps_service.shard_plan import ShardPlan
from ps_service.tables.rules import row_rule
from ps_service.tables.table import Gradient, Table
from ps_service.tables.table_snapshot import TableSnapshot
from psfleet.job.tables import rule_of
from psfleet.layout.embedding import EmbeddingContent
from psfleet.service.logs import RunLogger
from psfleet.tf import container_name
from psfleet.tf.table_calls import serve, shard_name

_logger = logging.getLogger("psfleet.ps")


@dataclass(frozen=True)
class Staged:
    """The gradients of rows, one for each table, of a worker's gradient with a number."""

    worker: int
    number: int
    gradients: list[Gradient]


class ShardTables:
    """The tables of a shard; all methods may be called from any thread.

    A worker stages the gradients of rows before it pushes those of the buckets, with the ticket that it gets for them.
    The update applies those whose tickets came with admitted buckets: rows enter an average with the buckets of their
    gradient or not at all, also if a worker repeats a step, or another process of it is late.

    Attributes:
        name: By which operations find it.
    """

    def __init__(self, plan: ShardPlan, start_step: int, content: Mapping[str, EmbeddingContent]) -> None:
        layout, job = plan.layout, plan.job
        # Unlike buckets, rows are read during a step: with spares, one ps may end it without this worker meanwhile, and
        # another ps still takes its gradient.
        keeps_previous = job.update.has_quorum and layout.num_ps > 1
        self.name = shard_name(container_name(plan.run, plan.generation), plan.shard)
        self._tables = [
            Table(
                spec,
                plan.shard,
                layout.num_ps,
                row_rule(rule_of(job.tables[spec.key], job.rule)),
                keeps_previous,
            )
            for spec in layout.embeddings
        ]
        for table in self._tables:
            restored = content.get(table.spec.name)
            if restored is not None and not table.restore(restored):
                RunLogger(_logger, plan.run).warning(
                    "the optimizer of table %s starts without state: the checkpoint has %s, expected %s",
                    table.spec.key,
                    ", ".join(sorted(restored.slots)) or "none",
                    ", ".join(sorted(table.rule.slots)) or "none",
                )
        self._step = start_step
        self._has_quorum = job.update.has_quorum
        self._ended: dict[int, int] = {}
        self._staged: dict[int, Staged] = {}
        self._tickets = itertools.count(1)
        self._snapshots: list[TableSnapshot] = []
        self._lock = threading.Lock()

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows that were updated."""
        return sum(table.row_bytes for table in self._tables)

    @property
    def slot_bytes(self) -> int:
        """Bytes of their slots."""
        return sum(table.slot_bytes for table in self._tables)

    def read(self, table: int, ids: np.ndarray, at_step: int) -> np.ndarray:
        """Rows at a step, if the shard has them; see `read_rows`."""
        with self._lock:
            return self._tables[table].read(ids, before_last=self._step > at_step)

    def stage(self, worker: int, number: int, gradients: list[Gradient]) -> int:
        """Keeps the gradients of a worker and number, unless they would never be applied; their ticket."""
        staged = Staged(worker, number, gradients)
        with self._lock:
            ticket = next(self._tickets)
            if not self._is_over(staged):
                self._staged[ticket] = staged
            return ticket

    def apply(self, tickets: list[int], step: int, rates: np.ndarray, factor: np.float32) -> None:
        """Applies the mean of staged gradients, times a factor, and drops those that came before.

        Args:
            step: The global step before the update.
        """
        with self._lock:
            each = [self._staged[ticket] for ticket in tickets]
            for at, table in enumerate(self._tables):
                own = [staged.gradients[at] for staged in each]
                if factor != 1:
                    own = [(ids, values * factor) for ids, values in own]
                table.update(own, rates[at], step + 1)
            self._step = step + 1
            self._end({staged.worker: staged.number for staged in each})

    def drop(self, worker: int, number: int) -> None:
        """Discards the staged gradients of a worker and number, which no update applies. Not in sync mode."""
        with self._lock:
            self._end({worker: max(number, self._ended.get(worker, -1))})

    def _end(self, numbers: Mapping[int, int]) -> None:
        """Discards the gradients of workers up to their numbers; in sync mode those of all workers before the step."""
        self._ended |= numbers
        self._staged = {ticket: staged for ticket, staged in self._staged.items() if not self._is_over(staged)}

    def _is_over(self, staged: Staged) -> bool:
        """Whether an update has applied or dropped the gradient of a worker and number, and will apply it no more."""
        if self._has_quorum:
            return staged.number < self._step
        return staged.number <= self._ended.get(staged.worker, -1)

    def take_snapshot(self) -> None:
        """Takes a snapshot of all rows that were updated, once the one before was read."""
        with self._lock:
            self._snapshots = [table.take_snapshot() for table in self._tables]

    def read_snapshot(self) -> dict[str, EmbeddingContent]:
        """A copy of the rows of the snapshot, by the name of the table, while updates continue; releases it."""
        contents = {}
        for table, snapshot in zip(self._tables, self._snapshots, strict=True):
            contents[table.spec.name] = copied = snapshot.copy()
            with self._lock:
                table.end_snapshot()
            snapshot.put_kept(copied)
        self._snapshots = []
        return contents


class GoneError(Exception):
    """A shard was closed: the generation has ended. TensorFlow reports it as UnknownError."""


class TableRegistry:
    """The tables of all shards of this process, which operations find by name."""

    def __init__(self) -> None:
        self._shards: dict[str, ShardTables] = {}
        serve(self)

    def add(self, tables: ShardTables) -> None:
        """Makes tables reachable."""
        self._shards[tables.name] = tables

    def remove(self, tables: ShardTables) -> None:
        """Makes tables unreachable."""
        self._shards.pop(tables.name, None)

    def read(self, name: bytes, table: np.int32, ids: np.ndarray, at_step: np.int64) -> np.ndarray:
        """See `TableServer`."""
        return self._find(name).read(int(table), ids, int(at_step))

    def stage(self, name: bytes, worker: np.int32, number: np.int64, *gradients: np.ndarray) -> np.int64:
        """See `TableServer`."""
        pairs = list(zip(gradients[::2], gradients[1::2], strict=True))
        return np.int64(self._find(name).stage(int(worker), int(number), pairs))

    def apply(
        self, name: bytes, tickets: np.ndarray, step: np.int64, rates: np.ndarray, factor: np.float32
    ) -> np.int32:
        """See `TableServer`."""
        self._find(name).apply(tickets.tolist(), int(step), rates, factor)
        return np.int32(len(tickets))

    def drop(self, name: bytes, worker: np.int32, number: np.int64) -> np.int32:
        """See `TableServer`."""
        self._find(name).drop(int(worker), int(number))
        return np.int32(1)

    def _find(self, name: bytes) -> ShardTables:
        tables = self._shards.get(name.decode())
        if tables is None:
            raise GoneError(f"the tables of {name.decode()} are gone")
        return tables


REGISTRY = TableRegistry()
"""Made when this module is imported, before TensorFlow's server can run an operation of a worker."""
