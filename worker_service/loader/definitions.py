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
from typing import NamedTuple, Self

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
        self._looked = clock()
        self._kept: dict[Path, _Kept] = {}
        while not self._make():
            # Another loader has taken it for abandoned before it was locked.
            self._close()

    def _make(self) -> bool:
        """Makes the folder; False: it was removed meanwhile."""
        self._folder = TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        root = Path(self._folder.name)
        self._lock = (root / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.folder = root / "definitions"
        try:
            self.folder.mkdir()
        except FileNotFoundError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        self._folder.cleanup()
        self._lock.close()

    def files(self) -> list[Path]:
        """One for each definition that is kept."""
        return [Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names]

    def remove_read(self) -> None:
        """Removes the files that were found `KEPT_SECS` ago, and notes new ones.

        No time counts while a file grows: the dispatcher gives no other one to readers meanwhile.
        """
        now = self._clock()
        sizes = {path: path.stat().st_size for path in self.files()}
        grows = any(path in self._kept and size > self._kept[path].size for path, size in sizes.items())
        lost, self._looked = now - self._looked if grows else 0.0, now
        since = {path: kept.since + lost for path, kept in self._kept.items()}
        self._kept = {path: _Kept(since.get(path, now), size) for path, size in sizes.items()}
        for path, kept in self._kept.items():
            if now - kept.since >= KEPT_SECS:
                path.unlink(missing_ok=True)


class _Kept(NamedTuple):
    """A definition: when it was found, and its bytes."""

    since: float
    size: int


def _remove_abandoned() -> None:
    """Removes the folders of loaders of this user that have ended without removing theirs."""
    for folder in Path(gettempdir()).glob(f"{PREFIX}*"):
        # Of another user, or just made or removed by another loader.
        with suppress(OSError), (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
