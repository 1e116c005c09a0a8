"""The files of a model that stay for a prediction of this machine, although a run deletes its checkpoint meanwhile."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from psfleet.checkpoint.deleted import use_found
from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import NoCheckpointError, UsageError
from psfleet.predictions.folders import writable
from psfleet.predictions.source import WEIGHTS, Source


@contextmanager
def pinned(find: Callable[[], Source], is_gone: Callable[[Source], bool], out: Path) -> Iterator[Source]:
    """Context manager for a model with links to its files, or copies, in a hidden folder beside `out`.

    Args:
        find: Returns the model.
        is_gone: Whether a model was deleted that another one replaces: it is found again.
        out: The file of the prediction.

    Raises:
        UsageError: The folder cannot be written.
        NoCheckpointError: The files were deleted meanwhile.
        StoreError: The store does not answer.
        PsfleetError: As `find`.
    """
    with writable(out):
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-model-", dir=out.parent)).absolute()
    try:
        yield use_found(find, lambda source: _kept(source, folder, out), is_gone)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kept(source: Source, folder: Path, out: Path) -> Source:
    if source.checkpoint is None:
        assert source.weights is not None, "a source has one of the two"
        _keep(source.weights, folder / WEIGHTS, out)
        return replace(source, weights=folder / WEIGHTS)
    # Named as the checkpoint, for messages.
    kept = folder / source.checkpoint.folder.name
    with writable(out):
        kept.mkdir(exist_ok=True)
    for file in source.files().values():
        _keep(file, kept / file.name, out)
    return replace(source, checkpoint=replace(source.checkpoint, folder=kept))


def _keep(file: Folder, path: Path, out: Path) -> None:
    """Links a file of this machine, or copies it, also one in a store."""
    try:
        path.unlink(missing_ok=True)
        if not isinstance(file, Path):
            with path.open("wb") as copy:
                copy.writelines(file.blocks())
        elif not _is_linked(file.resolve(), path):
            shutil.copyfile(file, path)
    except FileNotFoundError as error:
        raise NoCheckpointError(f"{file} was deleted meanwhile, expected a whole model") from error
    except StoreError:
        raise
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error


def _is_linked(file: Path, path: Path) -> bool:
    """Makes a hard link; False: the file is on another disk, or of another user."""
    try:
        os.link(file, path)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True
