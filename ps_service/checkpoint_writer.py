"""Reads snapshots and writes this ps's part of each checkpoint on a thread of its own, while training continues.

Where the ps do not share the chief's folder, the part is held in memory instead, until the chief has written it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from ps_service.finite import first_not_finite
from ps_service.part_holder import PartHolder
from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import checkpoint_folder
from psfleet.checkpoint.part_writing import encode_part, write_part
from psfleet.checkpoint.parts import NOT_FINITE, PartRecord, ShardContent
from psfleet.errors import BUG, PROGRAM_FAILED
from psfleet.layout import Layout
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")

REMEMBERED = 16
"""Number of its newest parts that a ps reports to the chief."""
CLOSE_SECS = 5.0
"""How long a close waits for the part that is being written: a network file system may never answer."""
RETRY_SECS = 1.0
"""Between two attempts to write the part of the final step."""


@dataclass(frozen=True)
class SavedPart:
    """A part that was written or is held for the chief, or the error.

    Attributes:
        is_retried: Whether the writer keeps the snapshot and tries again.
        is_held: Whether it is in memory only.
    """

    step: int
    record: PartRecord | None
    error: str = ""
    is_retried: bool = False
    is_held: bool = False


class CheckpointWriter:
    """Writes parts one at a time; one more snapshot may wait, inside TensorFlow.

    A part that the disk refuses is reported with its error, and training continues: the next due checkpoint is the next
    attempt. After the final step there is none, so its part is tried again until the writer is closed.

    Args of the constructor:
        root: The folder of the run's checkpoints, on a disk or in a store; None: parts are held for the chief.
        is_followed: Returns whether there is a chief that fetches parts.
        on_failure: Called with a message and an exit code, on the writer's thread: a tensor is not finite, and is not
            written, or there is a bug.
    """

    def __init__(
        self,
        root: Folder | None,
        run: str,
        generation: int,
        shard: int,
        layout: Layout,
        on_failure: Callable[[str, int], None],
        is_followed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._root = root
        self._run = run
        self._logger = RunLogger(_logger, run)
        self._generation = generation
        self._shard = shard
        self._layout = layout
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "checkpoint-writer")
        self._is_read = threading.Event()
        self._is_read.set()
        self._parts: list[SavedPart] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._newest: Future[None] | None = None
        self.held = PartHolder(is_followed, self._ended)

    def await_turn(self, timeout_secs: float | None = None) -> bool:
        """Waits until no snapshot waits to be read. A snapshot is read once the part before it is written.

        Returns:
            Whether that is so; False after the timeout.
        """
        return self._is_read.wait(timeout_secs)

    def save(self, step: int, read: Callable[[], ShardContent], is_final: Callable[[], bool] = lambda: False) -> None:
        """Reads a snapshot and writes it as soon as the part before is written.

        Args:
            step: Of the snapshot.
            read: Reads it; called on the writer's thread.
            is_final: Returns whether no checkpoint is due after this one; called on the writer's thread before each
                attempt, because a stop that other ps refused is moved to a later step.
        """
        self._is_read.clear()
        self._newest = self._thread.submit(self._save, step, read, is_final)

    def parts(self) -> list[SavedPart]:
        """The newest parts, oldest first."""
        with self._lock:
            return list(self._parts)

    def has_ended(self, step: int) -> bool:
        """Whether the part of a step is written, or will never be."""
        return any(part.step == step and not part.is_retried for part in self.parts())

    @property
    def is_busy(self) -> bool:
        """Whether a snapshot is being read, or a part is written or held."""
        return not self.held.is_empty or (self._newest is not None and not self._newest.done())

    def stop(self) -> None:
        """Ends retries, and drops a snapshot that waits to be read.

        Its part would belong to a generation that has ended, and would never be committed.
        """
        self._closing.set()
        self.held.close()
        if self._newest is not None and self._newest.cancel():
            self._is_read.set()

    def close(self) -> None:
        """Ends the thread once no part is being written; abandons a part that takes longer than `CLOSE_SECS`."""
        self.stop()
        ended = self._thread.submit(lambda: None)
        if wait([ended], CLOSE_SECS).not_done:
            text = "%s has not taken a checkpoint part of generation %d within %g s: its write is abandoned"
            self._logger.warning(text, self._root or "the chief", self._generation, CLOSE_SECS)
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.held.close()
        self._is_read.set()

    def _save(self, step: int, read: Callable[[], ShardContent], is_final: Callable[[], bool]) -> None:
        try:
            try:
                if self._root is None:
                    # Before the snapshot is read: it would be a third copy of the shard.
                    self.held.make_room(self._closing)
                content = None if self._closing.is_set() else read()
            finally:
                self._is_read.set()
            if content is not None and not self._closing.is_set():
                self._write(step, content, is_final)
        except Exception as error:
            # Any error: the chief would wait for this part until a deadline.
            if not self._closing.is_set():
                self._logger.exception("the snapshot of step %d was not written", step, extra={"step": step})
                self._on_failure(f"saving step {step} failed: {type(error).__name__}: {error}", BUG)

    def _write(self, step: int, content: ShardContent, is_final: Callable[[], bool]) -> None:
        tensor = first_not_finite(self._layout, self._shard, content)
        if tensor:
            saved = SavedPart(step, None, f"{tensor} {NOT_FINITE} at step {step}, expected finite numbers")
        else:
            saved = self._write_finite(step, content, is_final)
        self._report(saved)
        if tensor:
            self._on_failure(saved.error, PROGRAM_FAILED)

    def _write_finite(self, step: int, content: ShardContent, is_final: Callable[[], bool]) -> SavedPart:
        saved = self._try_to_write(step, content, is_final)
        while saved.is_retried:
            self._report(saved)
            if self._closing.wait(RETRY_SECS):
                return replace(saved, is_retried=False)
            saved = self._try_to_write(step, content, is_final)
        return saved

    def _try_to_write(self, step: int, content: ShardContent, is_final: Callable[[], bool]) -> SavedPart:
        if self._root is None:
            part = encode_part(self._shard, self._layout, content, step, self._generation, self._run)
            saved = SavedPart(step, part.record(), is_held=True)
            self.held.hold(step, part)
            return saved
        folder = checkpoint_folder(self._root, step, self._generation)
        try:
            record = write_part(folder, self._shard, self._layout, content, step, self._generation, self._run)
        except OSError as error:
            return SavedPart(step, None, f"{self._root}: {error.strerror or error}", is_retried=is_final())
        return SavedPart(step, record)

    def _ended(self, step: int, error: str, is_by_chief: bool) -> None:
        """Stores that a part is not held any more. One that this ps drops by itself is as if it had never been."""
        with self._lock:
            parts = {part.step: part for part in self._parts}
            part = parts.pop(step, None)
            if part is not None and is_by_chief:
                parts[step] = replace(part, is_held=False, error=error, record=None if error else part.record)
            self._parts = [parts[each] for each in sorted(parts)]
        if error:
            self._logger.info("the checkpoint part of step %d is dropped: %s", step, error, extra={"step": step})

    def _report(self, saved: SavedPart) -> None:
        """Stores the result of a part in place of that of an earlier attempt; logs an error when it is new."""
        with self._lock:
            is_known = saved in self._parts
            self._parts = [*[part for part in self._parts if part.step != saved.step], saved][-REMEMBERED:]
        if saved.error and not is_known:
            text = "cannot write the checkpoint part at step %d: %s%s"
            then = "; trying again" if saved.is_retried else ""
            self._logger.error(text, saved.step, saved.error, then, extra={"step": saved.step})
