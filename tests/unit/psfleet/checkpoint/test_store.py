"""Checkpoints are written atomically, found, verified, and pruned."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoint_samples import (
    SLOTS,
    contents,
    random_values,
    sample_layout,
    save,
)

from psfleet.checkpoint.manifest import checkpoint_folder, read_manifest, write_manifest
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.parts import PartRecord
from psfleet.checkpoint.store import newest, prune, verify
from psfleet.errors import NoCheckpointError, StorageError


def test_a_part_is_a_safetensors_file_whose_keys_are_names(tmp_path: Path) -> None:
    layout = sample_layout(1)
    record = write_part(tmp_path, 0, layout, contents(layout, 1)[0], 7, 2, "run")
    assert record.file == "ps-0-of-1.safetensors"
    tensors = safetensors.numpy.load_file(tmp_path / record.file)
    assert tensors["parameter/dense/kernel@0"].tobytes() == random_values(1)["dense/kernel"].tobytes()
    assert {"slot/m/dense/bias@0", "state/seen@0", "frozen/table@0", "scalar/beta1_power"} <= set(tensors)
    with safetensors.safe_open(tmp_path / record.file, framework="numpy") as file:
        assert file.metadata() == {
            "format_version": "1", "run": "run", "step": "7", "generation": "2", "shard": "0", "num_ps": "1"
        }  # fmt: skip


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = save(tmp_path, 7, generation=3)
    assert written.folder == tmp_path / "00000007-g3"
    assert read_manifest(written.folder) == written
    assert written.extra == {"versions": {"psfleet": "0"}}


def test_no_temporary_file_remains(tmp_path: Path) -> None:
    folder = save(tmp_path, 7).folder
    names = ["manifest.json", "ps-0-of-2.safetensors", "ps-1-of-2.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_parts_may_be_reported_in_any_order(tmp_path: Path) -> None:
    written = save(tmp_path, 7)
    again = write_manifest(
        written.folder, written.layout, written.parts[::-1], run="run", step=7, generation=1, optimizer="adam",
        slots=SLOTS, extra={},
    )  # fmt: skip
    assert again.parts == written.parts


def test_a_manifest_is_not_written_when_a_part_is_missing(tmp_path: Path) -> None:
    layout = sample_layout(2)
    part = write_part(tmp_path / "c", 0, layout, contents(layout, 1)[0], 7, 1, "run")
    with pytest.raises(NoCheckpointError, match="ps-1-of-2"):
        write_manifest(
            tmp_path / "c", layout, [part, PartRecord("ps-1-of-2.safetensors", 1, "0" * 64)], run="run", step=7,
            generation=1, optimizer="adam", slots=SLOTS, extra={},
        )  # fmt: skip
    assert not (tmp_path / "c" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("parameters", np.zeros(3, np.float32), "parameter of shard 0 is float32 \\[3\\]"),
        ("state", np.zeros(sample_layout(1).state.shard_size, np.int64), "state of shard 0 is int64"),
        ("slots", {"a/b": np.zeros(1, np.float32)}, "slot name 'a/b'"),
        ("scalars", {"power": np.zeros(2)}, "scalar/power of shard 0"),
    ],
)
def test_write_part_refuses_arrays_that_do_not_fit(tmp_path: Path, field: str, value: Any, problem: str) -> None:
    layout = sample_layout(1)
    content = dataclasses.replace(contents(layout, 1)[0], **{field: value})
    with pytest.raises(ValueError, match=problem):
        write_part(tmp_path, 0, layout, content, 7, 1, "run")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_is_an_os_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    layout = sample_layout(1)
    with pytest.raises(OSError, match="No space left"):
        write_part(tmp_path / "c", 0, layout, contents(layout, 1)[0], 7, 1, "run")
    assert list((tmp_path / "c").iterdir()) == []


def test_no_folder_means_no_checkpoint(tmp_path: Path) -> None:
    assert newest(tmp_path / "missing") is None
    (tmp_path / "stray").mkdir()
    (tmp_path / "00000001-g1").write_text("a file, no folder")
    assert newest(tmp_path) is None


def test_newest_is_by_step_and_then_by_generation(tmp_path: Path) -> None:
    for step, generation in [(90, 9), (100, 2), (100, 10), (20, 11)]:
        save(tmp_path, step, generation=generation)
    found = newest(tmp_path)
    assert found is not None
    assert (found.step, found.generation) == (100, 10)


def _truncate(folder: Path) -> None:
    part = folder / "ps-1-of-2.safetensors"
    part.write_bytes(part.read_bytes()[:-1])


def _flip_last_byte(folder: Path) -> None:
    part = folder / "ps-0-of-2.safetensors"
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _drop_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _drop_part(folder: Path) -> None:
    (folder / "ps-0-of-2.safetensors").unlink()


def _empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"")


BREAKAGES = [_truncate, _flip_last_byte, _drop_manifest, _drop_part, _empty_manifest]


@pytest.mark.parametrize("damage", BREAKAGES)
def test_an_invalid_newest_checkpoint_is_skipped(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 10)
    damage(save(tmp_path, 20).folder)
    with caplog.at_level(logging.WARNING, "psfleet.checkpoint"):
        found = newest(tmp_path)
    assert found is not None
    assert found.step == 10
    assert [record.name for record in caplog.records] == ["psfleet.checkpoint"]
    assert "00000020-g1" in caplog.text


@pytest.mark.parametrize("damage", BREAKAGES)
def test_it_is_an_error_when_all_are_invalid(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(save(tmp_path, 10).folder)
    damage(save(tmp_path, 20).folder)
    with pytest.raises(NoCheckpointError, match="none of the 2 checkpoints"):
        newest(tmp_path)


def test_verify_names_the_file_whose_content_changed(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 10)
    verify(checkpoint)
    _flip_last_byte(checkpoint.folder)
    with pytest.raises(NoCheckpointError, match=r"ps-0-of-2\.safetensors has SHA-256"):
        verify(checkpoint)
    _truncate(checkpoint.folder)
    with pytest.raises(NoCheckpointError, match="safetensors"):
        verify(checkpoint)


def test_prune_keeps_the_newest_and_deletes_older_uncommitted_ones(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    for step, generation in ((25, 1), (40, 2), (50, 2)):
        checkpoint_folder(tmp_path, step, generation).mkdir()
    (tmp_path / "stray").mkdir()
    removed = prune(tmp_path, keep=2)
    assert sorted(path.name for path in removed) == ["00000010-g1", "00000020-g1", "00000025-g1"]
    left = ["00000030-g1", "00000040-g1", "00000040-g2", "00000050-g2", "stray"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize(("keep", "removed"), [(1, ["00000020-g1", "00000030-g1"]), (2, ["00000020-g1"])])
def test_prune_keeps_what_a_generation_saves_below_a_damaged_checkpoint_of_the_one_before(
    tmp_path: Path, keep: int, removed: list[str]
) -> None:
    save(tmp_path, 20)
    _flip_last_byte(save(tmp_path, 30).folder)
    save(tmp_path, 25, generation=2)
    checkpoint_folder(tmp_path, 28, 2).mkdir()
    assert sorted(path.name for path in prune(tmp_path, keep)) == removed
    found = newest(tmp_path)
    assert found is not None
    assert found.folder.name == "00000025-g2"
    assert checkpoint_folder(tmp_path, 28, 2).is_dir(), "a ps may be writing it"


@pytest.mark.parametrize("keep", [0, 1])
def test_prune_never_deletes_the_newest_valid_one(tmp_path: Path, keep: int) -> None:
    save(tmp_path, 10)
    _truncate(save(tmp_path, 20).folder)
    assert prune(tmp_path, keep) == []
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 10


def test_prune_keeps_an_older_one_whose_files_are_damaged(tmp_path: Path) -> None:
    _truncate(save(tmp_path, 10).folder)
    save(tmp_path, 20)
    assert prune(tmp_path, keep=1) == []
    assert checkpoint_folder(tmp_path, 10, 1).is_dir()


def test_prune_keeps_uncommitted_ones_when_none_is_valid(tmp_path: Path) -> None:
    checkpoint_folder(tmp_path, 10, 1).mkdir()
    assert prune(tmp_path, keep=1) == []
    assert prune(tmp_path / "missing", keep=1) == []


@pytest.mark.parametrize("name", ["manifest.json", "ps-0-of-2.safetensors"])
def test_an_older_checkpoint_does_not_stand_in_for_one_that_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save(tmp_path, 10)
    unread = save(tmp_path, 20).folder / name

    original = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == unread:
            raise OSError(number, os.strerror(number))
        return original(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    number = errno.ESTALE
    with pytest.raises(StorageError, match=f"{name}.*cannot be read: Stale file handle"):
        newest(tmp_path)
    number = errno.EIO
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 10, "a lost block is damage"
