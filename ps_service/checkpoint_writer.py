"""Writes this ps's part of each checkpoint on a thread of its own, while training continues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ps_service.finite import first_not_finite
from psfleet.checkpoint.manifest import checkpoint_folder
from psfleet.checkpoint.parts import PartRecord, ShardContent, write_part
from psfleet.layout import Layout
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")

REMEMBERED = 16
"""Number of its newest parts that a ps reports to the chief."""


@dataclass(frozen=True)
class SavedPart:
    """A part that was written, or the error."""

    step: int
    record: PartRecord | None
    error: str = ""


class CheckpointWriter:
    """Writes parts one at a time.

    Args of the constructor:
        on_not_finite: Called with a message, on the writer's thread, instead of writing a tensor that is not finite.
    """

    def __init__(
        self, root: Path, run: str, generation: int, shard: int, layout: Layout, on_not_finite: Callable[[str], None]
    ) -> None:
        self._root = root
        self._run = run
        self._logger = RunLogger(_logger, run)
        self._generation = generation
        self._shard = shard
        self._layout = layout
        self._on_not_finite = on_not_finite
        self._thread = ThreadPoolExecutor(1, "checkpoint-writer")
        self._pending: Future[None] | None = None
        self._parts: list[SavedPart] = []
        self._lock = threading.Lock()

    def save(self, step: int, content: ShardContent) -> None:
        """Starts to write a snapshot, once the part before is written."""
        self.wait()
        self._pending = self._thread.submit(self._write, step, content)

    def wait(self) -> None:
        """Returns when no part is being written."""
        if self._pending is not None:
            self._pending.result()

    def parts(self) -> list[SavedPart]:
        """The newest parts, oldest first."""
        with self._lock:
            return list(self._parts)

    def close(self) -> None:
        """Ends the thread once no part is being written."""
        self._thread.shutdown(wait=True)

    def _write(self, step: int, content: ShardContent) -> None:
        tensor = first_not_finite(self._layout, self._shard, content)
        if tensor:
            saved = SavedPart(step, None, f"{tensor} is NaN or infinite at step {step}, expected finite numbers")
        else:
            saved = self._write_finite(step, content)
        if saved.error:
            self._logger.error(
                "cannot write the checkpoint part at step %d: %s", step, saved.error, extra={"step": step}
            )
        with self._lock:
            self._parts = [*self._parts, saved][-REMEMBERED:]
        if tensor:
            self._on_not_finite(saved.error)

    def _write_finite(self, step: int, content: ShardContent) -> SavedPart:
        folder = checkpoint_folder(self._root, step, self._generation)
        try:
            record = write_part(folder, self._shard, self._layout, content, step, self._generation, self._run)
        except OSError as error:
            return SavedPart(step, None, f"{folder}: {error.strerror or error}")
        return SavedPart(step, record)
