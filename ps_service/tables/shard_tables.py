"""The tables of a shard, and the calls of workers and of the shard's own updates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import numpy as np

from ps_service.shard_plan import ShardPlan
from ps_service.tables.rules import row_rule
from ps_service.tables.table import Gradient, Table
from psfleet.job.tables import rule_of
from psfleet.layout.embedding import EmbeddingContent
from psfleet.service.logs import RunLogger
from psfleet.tf import container_name
from psfleet.tf.table_calls import serve, shard_name

_logger = logging.getLogger("psfleet.ps")


class ShardTables:
    """The tables of a shard; all methods may be called from any thread.

    A worker stages the gradients of rows before it pushes those of the buckets, and the update applies those whose
    buckets were admitted: rows enter an average with the buckets of their gradient or not at all. A gradient that is
    staged again replaces the one before: in sync mode it is the same one, of a worker that repeats a step.

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
        self._staged: dict[tuple[int, int], list[Gradient]] = {}
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

    def stage(self, worker: int, number: int, gradients: list[Gradient]) -> None:
        """Keeps the gradients of a worker and number, unless they would never be applied."""
        with self._lock:
            if not self._is_over(worker, number):
                self._staged[worker, number] = gradients

    def apply(self, workers: list[int], number: int, step: int, rates: np.ndarray, factor: np.float32) -> None:
        """Applies the mean of the staged gradients of workers, times a factor, and drops those that came before.

        Args:
            number: Of the gradients; in sync mode that of all workers' gradients of the step.
            step: The global step before the update.
        """
        with self._lock:
            each = [self._staged[worker, number] for worker in workers]
            for at, table in enumerate(self._tables):
                own = [gradients[at] for gradients in each]
                if factor != 1:
                    own = [(ids, values * factor) for ids, values in own]
                table.update(own, rates[at], step + 1)
            self._step = step + 1
            self._end(workers, number)

    def drop(self, worker: int, number: int) -> None:
        """Discards the staged gradients of a worker and number, which no update applies. Not in sync mode."""
        with self._lock:
            self._end([worker], max(number, self._ended.get(worker, -1)))

    def _end(self, workers: list[int], number: int) -> None:
        """Discards the gradients of workers up to a number; in sync mode those of all workers before the step."""
        self._ended |= dict.fromkeys(workers, number)
        self._staged = {key: staged for key, staged in self._staged.items() if not self._is_over(*key)}

    def _is_over(self, worker: int, number: int) -> bool:
        """Whether an update has applied or dropped the gradient of a worker and number, and will apply it no more."""
        return number < self._step if self._has_quorum else number <= self._ended.get(worker, -1)

    def content(self) -> dict[str, EmbeddingContent]:
        """A copy of all rows that were updated, by the name of the table."""
        with self._lock:
            return {table.spec.name: table.content() for table in self._tables}


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

    def stage(self, name: bytes, worker: np.int32, number: np.int64, *gradients: np.ndarray) -> np.int32:
        """See `TableServer`."""
        pairs = list(zip(gradients[::2], gradients[1::2], strict=True))
        self._find(name).stage(int(worker), int(number), pairs)
        return np.int32(len(pairs))

    def apply(
        self,
        name: bytes,
        workers: np.ndarray,
        number: np.int64,
        step: np.int64,
        rates: np.ndarray,
        factor: np.float32,
    ) -> np.int32:
        """See `TableServer`."""
        self._find(name).apply(workers.tolist(), int(number), int(step), rates, factor)
        return np.int32(len(workers))

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
