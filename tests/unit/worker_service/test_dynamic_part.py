"""The threads that read loaders' parts: when one is closed, and when first pieces take long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from psfleet.errors import DataStallError
from worker_service import dynamic_part, epoch_order
from worker_service.batch_reader import Reading
from worker_service.dynamic_part import DynamicPart
from worker_service.epoch_order import EpochOrder
from worker_service.pass_counts import PassCounts

WAIT_SECS = 10.0


class Watch(SimpleNamespace):
    """Of a loader that answers."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.who = loader, "a loader"
        self.exited = threading.Event()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.exited.set()

    def has_begun(self, secs: float) -> bool:
        return True

    def has_ended(self, secs: float) -> bool:
        return False

    def on_end(self, call: Callable[[], None]) -> None:
        pass


def loader(index: int) -> Any:
    return SimpleNamespace(index=index, address=SimpleNamespace(control=f"loader-{index}:1"))


def test_a_part_that_is_closed_before_it_reads_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took would be lost to all workers."""
    has_closed, watch = threading.Event(), Watch(loader(0))
    monkeypatch.setattr(dynamic_part, "LoaderWatch", lambda loader: watch)
    stream: Any = MagicMock()

    def process() -> str:
        assert has_closed.wait(WAIT_SECS)
        return "process"

    part = DynamicPart(loader(0), process, stream, 98, PassCounts(), threading.Condition())
    part.close()
    has_closed.set()
    assert watch.exited.wait(WAIT_SECS)
    stream.assert_not_called()


class SlowStream:
    """Two passes of one example each, after a gate."""

    def __init__(self) -> None:
        self.is_read, self.gate = threading.Event(), threading.Event()

    def __call__(self, num_passes: int) -> Any:
        return self

    def named(self, process: str) -> SlowStream:
        return self

    def elements(self, *arguments: object) -> Iterator[tuple[int, np.ndarray]]:
        self.is_read.set()
        assert self.gate.wait(WAIT_SECS)
        yield from ((number, np.zeros(1)) for number in range(2))


class Looks(Reading):
    """A reading that opens a gate when the reader looks whether it is closed for the second time."""

    def __init__(self) -> None:
        self.looks = 0
        self.opens_next = threading.Event()
        super().__init__()

    @property
    def is_closed(self) -> bool:
        self.looks += 1
        if self.looks == 2:
            self.opens_next.set()
        return False

    @is_closed.setter
    def is_closed(self, value: bool) -> None:
        pass


def test_loaders_that_have_answered_are_waited_for_however_late_their_first_pieces_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loaders that have not answered would be given up at the first look, and the wait would end with an error."""
    monkeypatch.setattr(dynamic_part, "LoaderWatch", Watch)
    monkeypatch.setattr(epoch_order, "LOOK_SECS", 0.01)
    changed, counts, streams = threading.Condition(), PassCounts(), [SlowStream(), SlowStream()]
    parts = [
        DynamicPart(loader(index), lambda: "process", stream, 1, counts, changed)
        for index, stream in enumerate(streams)
    ]
    reading = Looks()
    order = EpochOrder(parts, changed, reading, 0.0)
    pieces = order.pieces()
    try:
        for index, stream in enumerate(streams):
            assert stream.is_read.wait(WAIT_SECS)
            reading.looks, reading.opens_next, reading.opens_shard = 0, stream.gate, False
            assert next(pieces).key.loader == index
            assert reading.opens_shard
    finally:
        for part in parts:
            part.close()
    assert [(each.loader, each.number, each.epoch) for each in counts.newest() if each.number == 0] == [
        (0, 0, 0),
        (1, 0, 0),
    ]


def test_a_loader_that_does_not_answer_is_given_up_before_its_first_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_part, "LoaderWatch", Watch)
    monkeypatch.setattr(Watch, "has_begun", lambda watch, secs: False)
    changed, stream = threading.Condition(), SlowStream()
    part = DynamicPart(loader(0), lambda: "process", stream, 1, PassCounts(), changed)
    try:
        with pytest.raises(DataStallError, match="waiting for loader 0 at loader-0:1 or another one to answer"):
            next(EpochOrder([part], changed, Reading(), 0.0).pieces())
    finally:
        part.close()
