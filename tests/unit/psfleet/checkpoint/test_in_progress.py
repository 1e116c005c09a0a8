"""Readers of checkpoints beside a run that writes one: it is no damage that it is not committed yet."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from support.checkpoint_samples import save

from psfleet.checkpoint.export import export
from psfleet.checkpoint.in_progress import WRITING_SECS
from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import MANIFEST
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.store_lease import StoreLease


def begun(root: Folder, step: int) -> Folder:
    """A checkpoint whose parts are there, without its manifest."""
    folder = save(root, step).folder
    (folder / MANIFEST).unlink()
    return folder


def last_written(folder: Folder, secs_ago: float) -> None:
    assert isinstance(folder, Path)
    for path in (folder, *folder.iterdir()):
        os.utime(path, (time.time() - secs_ago,) * 2)


def test_a_checkpoint_that_was_written_just_now_is_passed_over_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)
    begun(root, 20)
    export(tmp_path, tmp_path / "out.safetensors")
    assert caplog.messages == []
    newest(root)
    assert len(caplog.messages) == 1, "who restores it says what it leaves out"


def test_one_part_that_is_written_is_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)
    folder = begun(root, 20)
    last_written(folder, WRITING_SECS + 10)
    assert isinstance(folder, Path)
    os.utime(next(folder.iterdir()))
    export(tmp_path, tmp_path / "out.safetensors")
    assert caplog.messages == []


def test_one_that_was_left_behind_is_warned_of_unless_a_run_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)
    last_written(begun(root, 20), WRITING_SECS + 10)
    export(tmp_path, tmp_path / "out.safetensors", is_live=True)
    assert caplog.messages == []
    export(tmp_path, tmp_path / "out.safetensors")
    assert caplog.messages == [
        f"skipped an invalid checkpoint: checkpoint {root}/00000020-g1 has no manifest.json: it was never committed"
    ]


def test_damage_is_warned_of_also_beside_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "checkpoints"
    save(root, 10)
    damaged = save(root, 20).folder
    (damaged / MANIFEST).write_text("")
    export(tmp_path, tmp_path / "out.safetensors", is_live=True)
    assert len(caplog.messages) == 1
    assert MANIFEST in caplog.messages[0]


def test_in_a_store_it_is_passed_over_while_a_fleet_has_the_prefix(
    bucket: StoreFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = bucket / "run"
    save(store / "checkpoints", 10)
    begun(store / "checkpoints", 20)
    lease = StoreLease(store, "a", "host")
    assert lease.try_acquire()
    export(store, tmp_path / "out.safetensors")
    assert warnings(caplog) == []
    lease.release()
    export(store, tmp_path / "out.safetensors")
    (warning,) = warnings(caplog)
    assert "00000020-g1 has no manifest.json" in warning


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without what the server of the store logs."""
    return [each.message for each in caplog.records if each.levelno >= logging.WARNING]
