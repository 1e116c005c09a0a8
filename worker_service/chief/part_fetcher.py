"""Fetches the parts of a checkpoint from the ps that hold them, and writes them into the chief's folder."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from psfleet.checkpoint.manifest import checkpoint_name
from psfleet.checkpoint.part_writing import write_chunks
from psfleet.checkpoint.parts import PartRecord, part_name
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.control.download import Download
from psfleet.errors import LostPeerError, PsfleetError
from worker_service.chief.disk import Disk

logger = logging.getLogger("psfleet.chief")

IDLE_SECS = 10.0
"""A ps that sends nothing for so long is frozen or out of reach; its part is fetched again once it answers."""
LOOK_SECS = 1.0
RETRY_SECS = 1.0
"""Between two attempts to fetch a checkpoint."""


class PartFetcher:
    """Fetches one checkpoint at a time, from all ps at once, on threads of its own: heartbeats continue.

    Args of the constructor:
        root: The folder of the checkpoints.
        disk: Knows of each write, but not of the waits for the ps.
        on_end: Called on such a thread with the generation and the step of a checkpoint whose parts are written, or
            with the error of the disk that refused one.
    """

    def __init__(
        self, ps: Sequence[PsClient], root: Path, disk: Disk, on_end: Callable[[int, int, OSError | None], None]
    ) -> None:
        self._ps = ps
        self._root = root
        self._disk = disk
        self._on_end = on_end
        self._lock = threading.Lock()
        self._fetched: tuple[int, int] | None = None
        self._is_busy = False
        self._retries_at = 0.0
        self._logged = ""

    def fetch(self, generation: int, step: int, parts: Sequence[pb.SavedPart]) -> bool:
        """Whether the parts of a checkpoint are in its folder; if not, begins to fetch them, unless it fetches others.

        Args:
            parts: Of every ps, in their order. Those that are not held are in the folder.
        """
        held = {shard: part for shard, part in enumerate(parts) if part.held}
        with self._lock:
            if not held or self._fetched == (generation, step):
                return True
            if self._is_busy or time.monotonic() < self._retries_at:
                return False
            self._is_busy = True
        arguments = (generation, step, held)
        threading.Thread(target=self._run, args=arguments, name="part-fetcher", daemon=True).start()
        return False

    @property
    def is_busy(self) -> bool:
        """Whether it fetches a checkpoint now."""
        with self._lock:
            return self._is_busy

    def _run(self, generation: int, step: int, parts: dict[int, pb.SavedPart]) -> None:
        fetched, refused = None, None
        try:
            self._fetch(generation, step, parts)
            fetched = generation, step
        except OSError as error:
            refused = error
        except PsfleetError as error:
            self._log(step, error)
        finally:
            with self._lock:
                self._fetched = fetched or self._fetched
                self._is_busy = False
                self._retries_at = time.monotonic() + (0.0 if fetched else RETRY_SECS)
        if fetched or refused:
            self._on_end(generation, step, refused)

    def _log(self, step: int, error: PsfleetError) -> None:
        """Logs why a checkpoint did not arrive: once for each cause, however often it is tried again."""
        message = f"the parts of step {step} were not fetched: {error}"
        if message != self._logged:
            logger.warning("%s", message, extra={"step": step, "event": "fetch_failed"})
        self._logged = message

    def _fetch(self, generation: int, step: int, parts: dict[int, pb.SavedPart]) -> None:
        """Fetches all parts.

        Raises:
            OSError: A part cannot be written.
            PsfleetError: A part did not arrive.
        """
        folder = self._root / checkpoint_name(step, generation)
        with self._disk.writing(folder):
            # Of a chief that was killed: the folder may be kept for years.
            for left in folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)
        downloads: list[Download] = []
        with ThreadPoolExecutor(len(parts), "part-fetcher") as pool:
            calls: list[Future[PartRecord]] = []
            try:
                for shard, part in parts.items():
                    downloads.append(self._ps[shard].fetch_part(generation, step))
                    calls.append(pool.submit(self._write, folder, shard, part, downloads[-1]))
                _await(calls, downloads)
            finally:
                # After an error the other parts are of no use.
                for download in downloads:
                    download.cancel()
        errors = [error for call in calls if (error := call.exception()) is not None]
        for error in sorted(errors, key=lambda error: not isinstance(error, OSError)):
            raise error

    def _write(self, folder: Path, shard: int, part: pb.SavedPart, download: Download) -> PartRecord:
        announced = PartRecord(part_name(shard, len(self._ps)), part.num_bytes, part.sha256)

        def check(written: PartRecord) -> None:
            if written != announced:
                raise LostPeerError(f"a part of step {part.step} arrived as {written}, expected {announced}")

        path = folder / announced.file
        return write_chunks(folder, path.name, download, check, lambda: self._disk.writing(path))


def _await(calls: Sequence[Future[PartRecord]], downloads: Sequence[Download]) -> None:
    """Waits until all calls have ended or one has failed; cancels those that wait too long for a ps."""
    pending: set[Future[PartRecord]] = set(calls)
    while pending:
        done, pending = wait(pending, LOOK_SECS, FIRST_EXCEPTION)
        if any(call.exception() is not None for call in done):
            return
        for download in downloads:
            if download.idle_secs() > IDLE_SECS:
                download.cancel()
