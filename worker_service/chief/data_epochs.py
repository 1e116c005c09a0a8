"""Which examples the workers were given in each epoch, with `input.sharding: dynamic`, and which were lost."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from psfleet.control import control_pb2 as pb
from psfleet.errors import NoAnswerError
from psfleet.report.measurements import DataEpoch, DataReading
from worker_service.chief.data_parts import Part, Pass

REPORTED_EPOCHS = 100
"""The report has the newest so many."""
REPORTED_LOSSES = 1000
"""The report has the newest so many with a loss, too."""
KEPT_EPOCHS = 1000
"""Newest epochs whose passes are kept; of earlier ones that are over, their sums."""


@dataclass
class _Sums:
    """Sums of the epochs whose passes are kept no longer, and the newest of them with a loss."""

    delivered: int = 0
    lost: int = 0
    ended: int = 0
    with_loss: list[DataEpoch] = field(default_factory=list)


class DataEpochs:
    """Collects what workers have reported to loaders; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._earlier = _Sums()
        self._parts: dict[int, Part] = {}
        self._alive: set[str] = set()
        # By worker process, the step up to which its counts are known.
        self._steps: dict[str, int] = {}
        self._has_ended = False

    def note(self, loaders: Sequence[pb.ShardState | NoAnswerError | None]) -> None:
        """Merges the states of all loaders that answer."""
        with self._lock:
            alive: dict[str, bool] = {}
            for index, state in enumerate(loaders):
                part = self._parts.setdefault(index, Part())
                if not isinstance(state, pb.ShardState):
                    continue
                part.present = state.process
                for reader in state.readers:
                    process = reader.member.process
                    alive[process] = alive.get(process, False) or reader.is_alive
                    self._steps[process] = max(self._steps.get(process, 0), reader.step)
                    for each in reader.passes:
                        self._merge(process, each)
                    self._place(process, [each for each in reader.passes if each.HasField("epoch")])
            if alive:
                self._alive = {process for process, is_alive in alive.items() if is_alive}
                # A worker that has begun no pass is starting.
                self._alive &= {reader for part in self._parts.values() for _, reader in part.newest}
            if any(sum(map(len, part.processes.values())) >= 2 * KEPT_EPOCHS for part in self._parts.values()):
                self._drop_earlier()

    def has_counts(self, step: int) -> bool:
        """Whether each live worker has reported what it was given up to a step."""
        with self._lock:
            return all(self._steps[process] >= step for process in self._alive)

    def end(self) -> None:
        """Training has ended: a loader that is away takes part in no epoch any more."""
        with self._lock:
            self._has_ended = True

    def record(self) -> DataReading | None:
        """What the report says; None: no worker has reported anything."""
        with self._lock:
            size = self._size()
            epochs = self._epochs(size)
            earlier = copy.deepcopy(self._earlier)
        if not epochs:
            return None
        lost = [epoch.lost for epoch in epochs if epoch.lost is not None]
        newest = epochs[-REPORTED_EPOCHS:]
        with_loss = [*earlier.with_loss, *(epoch for epoch in epochs[:-REPORTED_EPOCHS] if epoch.lost)]
        return DataReading(
            sharding="dynamic",
            num_examples=size,
            delivered=earlier.delivered + sum(epoch.delivered for epoch in epochs),
            lost=earlier.lost + sum(lost),
            ended_epochs=earlier.ended + len(lost),
            epochs=[*with_loss[-REPORTED_LOSSES:], *newest],
        )

    def _drop_earlier(self) -> None:
        """Adds the passes of the oldest epochs to the sums, up to the first epoch that is not over."""
        epochs = self._epochs(self._size())
        over = list(itertools.takewhile(lambda epoch: epoch.lost is not None, epochs[:-KEPT_EPOCHS]))
        if not over:
            return
        self._earlier.delivered += sum(epoch.delivered for epoch in over)
        self._earlier.lost += sum(epoch.lost or 0 for epoch in over)
        self._earlier.ended += len(over)
        with_loss = [*self._earlier.with_loss, *(epoch for epoch in over if epoch.lost)]
        self._earlier.with_loss = with_loss[-REPORTED_LOSSES:]
        for part in self._parts.values():
            for epoch, process, number, _ in list(part.epochs()):
                if epoch <= over[-1].epoch:
                    part.drop(process, number)

    def _merge(self, reader: str, reported: pb.Pass) -> None:
        """Loaders that received reports at different times have different counts: the newest are the highest."""
        part = self._parts.setdefault(reported.loader, Part())
        if reported.number <= part.dropped.get(reported.process, -1):
            return
        at = reported.process, reader
        part.newest[at] = max(part.newest.get(at, 0), reported.number)
        part.highest[reported.process] = max(part.highest.get(reported.process, 0), reported.number)
        by_reader = part.processes.setdefault(reported.process, {}).setdefault(reported.number, Pass()).by_reader
        known = by_reader.get(reader)
        if known is None or (known.examples, known.ended) <= (reported.examples, reported.ended):
            by_reader[reader] = reported

    def _place(self, reader: str, taken: Sequence[pb.Pass]) -> None:
        """Finds the epochs of processes of loaders which are new, and take part in the present epoch of a worker.

        Args:
            reader: A worker.
            taken: Its passes, with its epochs, which it has counted since it began.
        """
        placed = [each for each in taken if each.process in self._parts[each.loader].first]
        shift = 0
        if placed:
            newest = placed[-1]
            part = self._parts[newest.loader]
            part.place(reader, newest, 0)
            shift = part.epoch(newest.process, newest.number) - newest.epoch
        for each in taken:
            self._parts[each.loader].place(reader, each, max(0, each.epoch + shift - each.number))

    def _size(self) -> int | None:
        """Examples of the data set; None: unknown."""
        sizes = [part.size() for part in self._parts.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def _epochs(self, size: int | None) -> list[DataEpoch]:
        passes: dict[int, dict[int, tuple[Pass, bool]]] = {}
        for loader, part in self._parts.items():
            for epoch, process, number, each in part.epochs():
                passes.setdefault(epoch, {})[loader] = each, self._is_over(part, process, number)
        ends = {loader: part.end() for loader, part in self._parts.items()}
        if self._has_ended:
            newest = max(ends.values(), default=0) - 1
            ends = {loader: max(end, newest) for loader, end in ends.items()}
        return [self._epoch(epoch, passes[epoch], size, ends) for epoch in sorted(passes)]

    def _epoch(
        self, epoch: int, passes: dict[int, tuple[Pass, bool]], size: int | None, ends: dict[int, int]
    ) -> DataEpoch:
        """An epoch.

        Args:
            passes: By loader; none of one that was away, and takes part again from a later epoch on.
            ends: By loader, the first epoch that it may still take part in.
        """
        delivered = sum(each.delivered for each, _ in passes.values())
        is_over = all(passes[loader][1] if loader in passes else epoch < end for loader, end in ends.items())
        if not is_over or size is None:
            return DataEpoch(epoch=epoch, delivered=delivered, lost=None)
        return DataEpoch(epoch=epoch, delivered=delivered, lost=max(0, size - delivered))

    def _is_over(self, part: Part, process: str, number: int) -> bool:
        """Whether no worker will report more of a pass: each that lives has been given examples of a later one."""
        passes = part.processes[process]
        return all(self._has_passed(part, process, passes, number, reader) for reader in self._alive)

    def _has_passed(self, part: Part, process: str, passes: dict[int, Pass], number: int, reader: str) -> bool:
        newest = part.newest.get((process, reader))
        if newest is None:
            # It may have an example that it has not counted, unless the process is gone.
            return self._has_ended or process != part.present
        own = passes[number].by_reader.get(reader)
        if own is not None and not own.ended:
            return False
        # A pass that is kept no longer was over.
        return newest > number or newest not in passes or passes[newest].by_reader[reader].lost
