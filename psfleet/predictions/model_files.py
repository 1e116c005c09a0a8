"""The files of a model that a driver gives its workers: on its disk, or copied there from an object store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import LostPeerError
from psfleet.files import replaced_file


def on_disk(files: Mapping[str, Folder], folder: Path, check: Callable[[], None]) -> dict[str, Path]:
    """Paths of files, by their names.

    Args:
        folder: Has the copies of those in a store; an earlier driver may have made them.
        check: Called again and again; ends the call by an error.

    Raises:
        LostPeerError: A file was deleted meanwhile.
        StoreError: The store does not answer.
        OSError: The folder cannot be written.
    """
    return {
        name: file if isinstance(file, Path) else _copied(file, folder / f"model-{file.name}", check)
        for name, file in files.items()
    }


def _copied(source: StoreFolder, path: Path, check: Callable[[], None]) -> Path:
    if path.exists():
        return path
    with replaced_file(path, "driver") as file:
        try:
            for block in source.blocks():
                file.write(block)
                check()
        except FileNotFoundError as error:
            raise LostPeerError(f"{source} was deleted while it was copied, expected a whole checkpoint") from error
    return path
