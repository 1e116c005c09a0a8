"""The definitions of data sets that a loader has: each may be as large as the data."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.loaders import reached, running
from support.program_samples import sample_job

from psfleet.job.program import GraphProgram
from psfleet.processes.ports import free_addresses
from worker_service.loader.definitions import KEPT_SECS, LOCK, PREFIX, Definitions
from worker_service.loader_stream import LoaderLostError, LoaderStream
from worker_service.training_data import TrainingData

EXAMPLES = np.arange(8.0 * 16384).reshape(8, 16384)
"""Two batches, of one megabyte."""
EPOCHS = 3


class Clock:
    """Stands still unless it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def of_unknown_length(shard: int, shards: int) -> tf.data.Dataset:
    """Sent for each epoch."""
    return tf.data.Dataset.from_tensor_slices(EXAMPLES).filter(lambda example: True)


def test_the_definitions_of_epochs_are_files_that_are_removed_once_they_are_read() -> None:
    clock, (address,) = Clock(), free_addresses(1)
    program = GraphProgram(loss=lambda batch: batch, train=of_unknown_length)
    definitions = Definitions(clock)
    with running(address, definitions=definitions):
        batches = TrainingData(program, sample_job(), 0, 1, False, reached([address])).batches(0)
        for epoch in range(EPOCHS):
            np.testing.assert_array_equal(next(batches)[0], EXAMPLES[:4])
            definitions.remove_read()
            (kept,) = definitions.files()
            assert kept.stat().st_size > EXAMPLES.nbytes, f"epoch {epoch}"
            clock.now += KEPT_SECS
            definitions.remove_read()
            assert not definitions.files()
            np.testing.assert_array_equal(next(batches)[0], EXAMPLES[4:])
        batches.close()  # type: ignore[attr-defined]
    assert not definitions.folder.exists()


def test_a_worker_that_reads_from_a_data_set_too_late_takes_its_loader_for_lost() -> None:
    """It then sends the data set again."""
    clock, (address,) = Clock(), free_addresses(1)
    definitions = Definitions(clock)

    def stand_still(end: Callable[[], None]) -> None:
        definitions.remove_read()
        clock.now += KEPT_SECS
        definitions.remove_read()

    watch: Any = SimpleNamespace(loader=reached([address])[0], who="loader 0", on_end=stand_still)
    with (
        running(address, definitions=definitions),
        pytest.raises(LoaderLostError, match="loader 0 keeps the data set no longer"),
    ):
        next(LoaderStream(tf.data.Dataset.range(9), sample_job(), "reading").elements(watch))


def test_the_folders_of_loaders_that_were_killed_are_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / f"{PREFIX}killed"
    killed.mkdir()
    for name in (LOCK, "definition"):
        (killed / name).touch()
    with Definitions() as living, Definitions() as own:
        assert {each.parent for each in (living.folder, own.folder)} == set(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_no_time_counts_while_the_dispatcher_writes() -> None:
    """It holds a lock that readers need."""
    clock = Clock()
    with Definitions(clock) as definitions:
        unread, written = definitions.folder / "unread", definitions.folder / "written"
        unread.write_bytes(b"x")
        for size in range(3):
            written.write_bytes(b"x" * size)
            definitions.remove_read()
            clock.now += KEPT_SECS
        assert definitions.files()
        definitions.remove_read()
        assert not definitions.files()


def test_a_folder_that_another_loader_has_taken_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock, locked = fcntl.flock, []

    def after_removal(file: Any, operation: int) -> None:
        if not locked:
            shutil.rmtree(next(tmp_path.iterdir()))
        locked.append(file)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", after_removal)
    with Definitions() as definitions:
        assert definitions.folder.is_dir()
    assert len(locked) == 2
