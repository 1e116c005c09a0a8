"""Keeps the definitions of the data sets that a loader reads in files, for as long as they are needed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Self

PREFIX = "psfleet-loader-"
"""Of the folder. It is in TensorFlow's message about a definition that is read after that time."""
LOCK = "lock"
"""Name of a file beside the definitions, which is locked as long as their loader lives."""
KEPT_SECS = 60.0
"""A worker reads as soon as the dispatcher has its data set; a definition that was read once is not read again."""


class Definitions:
    """A private folder for the dispatcher, which would keep the definitions in memory, and for ever.

    A definition has the tensors of its data set, perhaps all examples. Workers send another one for each epoch of data
    that are random, or whose length is unknown. Folders of loaders that were killed are removed first.

    Args of the constructor:
        clock: Monotonic, in seconds; not the time of the files, for which a machine may have slept.

    Attributes:
        folder: Of the dispatcher.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        _remove_abandoned()
        self._clock = clock
        self._folder = TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        root = Path(self._folder.name)
        self._lock = (root / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.folder = root / "definitions"
        self.folder.mkdir()
        self._since: dict[Path, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()
        self._lock.close()

    def files(self) -> list[Path]:
        """One for each definition that is kept."""
        return [Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names]

    def remove_read(self) -> None:
        """Removes the files that were found `KEPT_SECS` ago, and notes new ones."""
        now = self._clock()
        self._since = {path: self._since.get(path, now) for path in self.files()}
        for path, since in self._since.items():
            if now - since >= KEPT_SECS:
                path.unlink(missing_ok=True)


def _remove_abandoned() -> None:
    """Removes the folders of loaders of this user that have ended without removing theirs."""
    for folder in Path(gettempdir()).glob(f"{PREFIX}*"):
        # Of another user, or just made or removed by another loader.
        with suppress(OSError), (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
