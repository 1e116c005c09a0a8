"""The chief's TensorBoard file, which is made anew after a write that failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_service.chief.storage import Storage

WHAT = "TensorBoard summaries"


class Board:
    """Writes summaries to a file in the run's folder `tensorboard`.

    TensorFlow's writer reports a full disk only when it flushes, discards then what it holds, and does not notice that
    its file was deleted. A writer that failed is therefore dropped, and the next summaries begin a new file.
    """

    def __init__(self, out: Path, storage: Storage) -> None:
        self._folder = out / "tensorboard"
        self._storage = storage
        self._writer: Any = None

    def write(self, step: int, summaries: Callable[[], object]) -> None:
        """Calls a function that makes `tf.summary` operations, at a step."""
        with self._storage.writing(WHAT):
            try:
                if self._writer is None:
                    self._writer = tf.summary.create_file_writer(str(self._folder))
                elif not self._folder.is_dir():
                    raise FileNotFoundError(2, "No such file or directory", str(self._folder))
                with self._writer.as_default(step=step):
                    summaries()
            except (OSError, tf.errors.OpError):
                self._writer = None
                raise

    def close(self) -> None:
        """Flushes and closes the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with self._storage.writing(WHAT):
                writer.close()
