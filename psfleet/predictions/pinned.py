"""The files of a model that stay for a prediction of this machine, although a run deletes its checkpoint meanwhile."""

from __future__ import annotations

import logging
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
from psfleet.errors import NoCheckpointError
from psfleet.launch.runs import has_live_run
from psfleet.predictions.folders import writable
from psfleet.predictions.source import WEIGHTS, Source

logger = logging.getLogger("psfleet.predictions")


@contextmanager
def pinned(find: Callable[[], Source], is_gone: Callable[[Source], bool], out: Path) -> Iterator[Source]:
    """Context manager for a model with links to its files in a hidden folder beside `out`.

    Files that cannot be linked are copied if the run may delete them, which one that is over does not. Those that
    cannot be copied either are used where they are.

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
        yield use_found(find, lambda source: _kept(source, folder), is_gone)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kept(source: Source, folder: Path) -> Source:
    """The model with the files in a folder; the model itself if they cannot be kept there."""
    # Named as the checkpoint, for messages.
    kept = folder if source.checkpoint is None else folder / source.checkpoint.folder.name
    try:
        kept.mkdir(exist_ok=True)
        for file in source.files().values():
            _keep(file, kept / (WEIGHTS if source.checkpoint is None else file.name))
    except StoreError:
        raise
    except OSError as error:
        logger.info("the model is used in place: %s", error.strerror or error)
        for path in kept.iterdir() if kept.exists() else ():
            path.unlink()
        return source
    if source.checkpoint is None:
        return replace(source, weights=kept / WEIGHTS)
    return replace(source, checkpoint=replace(source.checkpoint, folder=kept))


def _keep(file: Folder, path: Path) -> None:
    """Links a file of this machine, or copies one that may be deleted, also one in a store.

    Raises:
        NoCheckpointError: It was deleted meanwhile.
        StoreError: The store does not answer.
        OSError: It can neither be linked nor copied, or only be copied and is that of a run that is over.
    """
    try:
        path.unlink(missing_ok=True)
        if not isinstance(file, Path):
            with path.open("wb") as copy:
                copy.writelines(file.blocks())
        elif (refused := _link(file.resolve(), path)) is not None:
            if not has_live_run(file.parent.parent):
                raise refused
            shutil.copyfile(file, path)
    except FileNotFoundError as error:
        raise NoCheckpointError(f"{file} was deleted meanwhile, expected a whole model") from error


def _link(file: Path, path: Path) -> OSError | None:
    """Makes a hard link; returns the error if the file is on another disk, or of another user."""
    try:
        os.link(file, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        return error
    return None
