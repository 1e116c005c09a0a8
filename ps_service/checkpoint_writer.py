"""Writes this ps's part of each checkpoint on a thread of its own, while training continues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ps_service.finite import first_not_finite
from psfleet.checkpoint.manifest import checkpoint_folder
from psfleet.checkpoint.parts import PartRecord, ShardContent, write_part
from psfleet.layout import Layout
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")

REMEMBERED = 16
"""Number of its newest parts that a ps reports to the chief."""
RETRY_SECS = 1.0
"""Between two attempts to write the part of the final step."""


@dataclass(frozen=True)
class SavedPart:
    """A part that was written, or the error.

    Attributes:
        is_retried: Whether the writer keeps the snapshot and tries again.
    """

    step: int
    record: PartRecord | None
    error: str = ""
    is_retried: bool = False


class CheckpointWriter:
    """Writes parts one at a time.

    A part that the disk refuses is reported with its error, and training continues: the next due checkpoint is the next
    attempt. After the final step there is none, so its part is tried again until the writer is closed.

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
        self._closing = threading.Event()

    def save(self, step: int, content: ShardContent, is_final: bool = False) -> None:
        """Starts to write a snapshot, once the part before is written."""
        self.wait()
        self._pending = self._thread.submit(self._write, step, content, is_final)

    def wait(self) -> None:
        """Returns when no part is being written."""
        if self._pending is not None:
            self._pending.result()

    def parts(self) -> list[SavedPart]:
        """The newest parts, oldest first."""
        with self._lock:
            return list(self._parts)

    def has_ended(self, step: int) -> bool:
        """Whether the part of a step is written, or will never be."""
        return any(part.step == step and not part.is_retried for part in self.parts())

    def close(self) -> None:
        """Ends the thread once no part is being written."""
        self._closing.set()
        self._thread.shutdown(wait=True)

    def _write(self, step: int, content: ShardContent, is_final: bool) -> None:
        tensor = first_not_finite(self._layout, self._shard, content)
        if tensor:
            saved = SavedPart(step, None, f"{tensor} is NaN or infinite at step {step}, expected finite numbers")
        else:
            saved = self._write_finite(step, content, is_final)
        self._report(saved)
        if tensor:
            self._on_not_finite(saved.error)

    def _write_finite(self, step: int, content: ShardContent, is_final: bool) -> SavedPart:
        saved = self._try_to_write(step, content, is_final)
        while saved.is_retried:
            self._report(saved)
            if self._closing.wait(RETRY_SECS):
                return replace(saved, is_retried=False)
            saved = self._try_to_write(step, content, is_final)
        return saved

    def _try_to_write(self, step: int, content: ShardContent, is_final: bool) -> SavedPart:
        folder = checkpoint_folder(self._root, step, self._generation)
        try:
            record = write_part(folder, self._shard, self._layout, content, step, self._generation, self._run)
        except OSError as error:
            return SavedPart(step, None, f"{self._root}: {error.strerror or error}", is_retried=is_final)
        return SavedPart(step, record)

    def _report(self, saved: SavedPart) -> None:
        """Replaces what is known of the part's step."""
        parts = self.parts()
        if saved.error and saved not in parts:
            text = "cannot write the checkpoint part at step %d: %s%s"
            then = "; trying again" if saved.is_retried else ""
            self._logger.error(text, saved.step, saved.error, then, extra={"step": saved.step})
        with self._lock:
            self._parts = [*[part for part in parts if part.step != saved.step], saved][-REMEMBERED:]
