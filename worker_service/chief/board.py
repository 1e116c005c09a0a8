"""The chief's TensorBoard file: written on a thread of its own, and made anew after a write that failed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_service.chief.storage import Storage

WHAT = "TensorBoard summaries"
MAX_WAITING = 100
"""Writes that may wait for a slow disk; further ones are dropped."""
CLOSE_SECS = 5.0


class Board:
    """Writes summaries to a file in the run's folder `tensorboard`; its methods may be called from any thread.

    TensorFlow's writer reports a full disk only when it flushes, discards then what it holds, and does not notice that
    its file was deleted. A writer that failed is therefore dropped, and the next summaries begin a new file.
    """

    def __init__(self, out: Path, storage: Storage) -> None:
        self._folder = out / "tensorboard"
        self._storage = storage
        self._writer: Any = None
        self._thread = ThreadPoolExecutor(1, "summaries")
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def write(self, step: int, summaries: Callable[[], object]) -> None:
        """Has a function called, soon, that makes `tf.summary` operations at a step."""
        with self._lock:
            while self._waiting and self._waiting[0].done():
                self._waiting.popleft().result()
            is_full = len(self._waiting) >= MAX_WAITING
            if not is_full:
                self._waiting.append(self._thread.submit(self._write, step, summaries))
        if is_full:
            self._storage.failed(WHAT, f"{WHAT}: the disk does not take them, and they are dropped", "write_failed")

    def drain(self) -> None:
        """Waits until all that waits is written, but no longer than `CLOSE_SECS`."""
        with suppress(TimeoutError):
            self._thread.submit(lambda: None).result(CLOSE_SECS)

    def close(self) -> None:
        """Writes what waits, and closes the file; abandons a disk that does not take it in `CLOSE_SECS`."""
        closing = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        try:
            closing.result(CLOSE_SECS)
        except TimeoutError:
            self._storage.failed(WHAT, f"{WHAT}: not written in {CLOSE_SECS:g} s", "write_failed")

    def _write(self, step: int, summaries: Callable[[], object]) -> None:
        with self._storage.writing(WHAT, is_awaited=False):
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

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with self._storage.writing(WHAT, is_awaited=False):
                writer.close()
