"""The files of a model in a store, on the disk of the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import LostPeerError, StoppedError
from psfleet.predictions.model_files import on_disk


def ignore() -> None:
    """Nothing ends the call."""


def test_files_of_a_store_are_copied_once(tmp_path: Path, bucket: StoreFolder) -> None:
    (bucket / "part").write_bytes(b"weights")
    (tmp_path / "here").write_bytes(b"manifest")
    files = {"checkpoint/part": bucket / "part", "checkpoint/here": tmp_path / "here"}
    found = on_disk(files, tmp_path, ignore)
    assert {name: path.read_bytes() for name, path in found.items()} == {
        "checkpoint/part": b"weights",
        "checkpoint/here": b"manifest",
    }
    (bucket / "part").unlink()
    assert on_disk(files, tmp_path, ignore) == found, "a driver that is started again has them"


def test_a_file_that_was_deleted_leaves_no_part_of_it(tmp_path: Path, bucket: StoreFolder) -> None:
    with pytest.raises(LostPeerError, match="part was deleted while it was copied"):
        on_disk({"checkpoint/part": bucket / "part"}, tmp_path, ignore)
    assert not list(tmp_path.iterdir())


def test_a_signal_ends_the_copy(tmp_path: Path, bucket: StoreFolder) -> None:
    def stop() -> None:
        raise StoppedError(15)

    (bucket / "part").write_bytes(b"weights")
    with pytest.raises(StoppedError):
        on_disk({"checkpoint/part": bucket / "part"}, tmp_path, stop)
    assert not list(tmp_path.iterdir())
