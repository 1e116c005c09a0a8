"""A model that a run deletes while it predicts on this machine."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint

from psfleet.checkpoint import store
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.tensors import read_tensors
from psfleet.errors import NoCheckpointError, UsageError
from psfleet.predictions import pinned as module
from psfleet.predictions.pinned import pinned
from psfleet.predictions.source import Source, find


def read(source: Source) -> np.ndarray:
    """The kernel, as a worker of this machine reads it."""
    named = source.request("data:set", 2).checkpoint
    assert named is not None
    return read_tensors(read_manifest(Path(named)))["net/dense/kernel"]


def never(source: Source) -> bool:
    return False


def refused(*paths: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("can_link", [True, False])
def test_a_checkpoint_that_is_deleted_stays_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    trained(tmp_path)
    if not can_link:
        monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(module, "has_live_run", lambda path: path.resolve() in (tmp_path, tmp_path / "checkpoints"))
    with pinned(lambda: find(str(tmp_path), None, False), never, tmp_path / "out.npz") as source:
        with_checkpoint(tmp_path, 4, KERNEL + 1, BIAS)
        (old,) = store.prune(tmp_path / "checkpoints", 1)
        assert old.name == "00000000-g1"
        np.testing.assert_array_equal(read(source), KERNEL)
        assert (source.name, source.folder) == ("step 0", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "versioned_program.py"]


@pytest.mark.parametrize("is_live", [True, False])
def test_files_that_cannot_be_linked_are_used_in_place_if_the_run_is_over_or_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    copied: list[object] = []

    def full(file: Path, path: Path) -> None:
        copied.append(file)
        path.write_bytes(b"part")
        raise OSError(errno.ENOSPC, "No space left on device")

    trained(tmp_path)
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr(module, "has_live_run", lambda path: is_live)
    with pinned(lambda: find(str(tmp_path), None, False), never, tmp_path / "out.npz") as source:
        np.testing.assert_array_equal(read(source), KERNEL)
        assert source.checkpoint is not None
        assert source.checkpoint.folder == tmp_path / "checkpoints" / "00000000-g1"
        assert list(tmp_path.glob(".out.npz-model-*/*/*")) == []
    assert bool(copied) is is_live


def test_one_that_is_deleted_before_it_is_linked_is_found_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    trained(run)
    looks: list[str] = []

    def look() -> Source:
        source = find(str(run), None, False)
        if not looks:
            with_checkpoint(run, 4, KERNEL + 1, BIAS)
            shutil.rmtree(run / "checkpoints" / "00000000-g1")
        looks.append(source.name)
        return source

    with pinned(look, lambda source: True, tmp_path / "out.npz") as source:
        np.testing.assert_array_equal(read(source), KERNEL + 1)
    assert looks == ["step 0", "step 4"]
    looks.clear()
    with_checkpoint(run, 0, KERNEL, BIAS)
    shutil.rmtree(run / "checkpoints" / "00000004-g1")
    with (
        pytest.raises(NoCheckpointError, match=r"manifest\.json was deleted meanwhile, expected a whole model"),
        pinned(look, never, tmp_path / "out.npz"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_file_of_a_trial_stays_until_the_end(tmp_path: Path) -> None:
    weights = tmp_path / "7.safetensors"
    weights.write_bytes(b"weights")
    trial = Source(find(str(trained(tmp_path)), None, False).job, tmp_path, "trial 7", "a:b", weights=weights)
    with pinned(lambda: trial, never, tmp_path / "out.npz") as source:
        weights.unlink()
        assert source.weights is not None
        assert source.weights.read_bytes() == b"weights"


def test_a_checkpoint_in_a_store_is_copied(tmp_path: Path, bucket: StoreFolder) -> None:
    (folder,) = (trained(tmp_path) / "checkpoints").iterdir()
    for path in folder.iterdir():
        (bucket / "checkpoints" / folder.name / path.name).write_bytes(path.read_bytes())
    with pinned(lambda: find(str(bucket), None, False), never, tmp_path / "out.npz") as source:
        store.delete(bucket / "checkpoints" / folder.name)
        np.testing.assert_array_equal(read(source), KERNEL)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"out\.npz cannot be written: No such file or directory"),
        pinned(lambda: find(str(trained(tmp_path)), None, False), never, tmp_path / "no" / "out.npz"),
    ):
        pass
