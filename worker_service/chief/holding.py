"""Holds training at a step: the chief agrees on it with all ps, and each generation starts with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from psfleet.control import MIN_STEPS_AHEAD
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.errors import LostPeerError, StorageError
from psfleet.job.update import Update
from psfleet.report.hold import AT_START, FILE_NAME, HoldRecord
from worker_service.chief.disk import Disk
from worker_service.fleet_state import TRAINING, States, is_held, last_step

logger = logging.getLogger("psfleet.chief")

MAX_TRIES = 10
"""Steps that are proposed one after the other, each twice as far ahead as the one before."""


class Holding:
    """The hold of a run; its methods may be called from any thread.

    A run that was started to be held has a record, which each chief reads. A pause, for one call, has none: the next
    chief ends it, and so does the next generation.

    Attributes:
        lock: Held while the newest checkpoint is looked for or replaced; see `Recovery`.
    """

    def __init__(self, out: Path, disk: Disk, update: Update) -> None:
        self._out = out
        self._update = update
        self._disk = disk
        self._calls = threading.Lock()
        with disk.reading(out):
            self._record = HoldRecord.read(out)
        self._pause_at: int | None = None
        self._logged: int | None = None
        self.lock = threading.RLock()

    @property
    def record(self) -> HoldRecord | None:
        """The record of a run that was started to be held; None: it was not."""
        return self._record

    @property
    def at(self) -> int | None:
        """The step at which training is held or pauses; None: neither."""
        if self._pause_at is not None:
            return self._pause_at
        return None if self._record is None or self._record.step == AT_START else self._record.step

    def of_generation(self, start: int) -> int | None:
        """The step at which a new generation is held; a pause ends with the generation before.

        Args:
            start: The step that the generation starts from.
        """
        with self._calls:
            self._pause_at = None
            if self._record is not None and self._record.step == AT_START:
                self._write(HoldRecord(start))
            return self.at

    def hold_at(self, step: int, call: str) -> None:
        """Has a held run train up to a later step; `update` sends it. Raises `StorageError`: the disk refuses it."""
        with self._calls:
            self._write((self._record or HoldRecord(AT_START)).followed_by(step, call))

    def update(self, states: States, ps: Sequence[PsClient]) -> None:
        """Sends the step to each ps that has another one, as a chief or a ps that was restarted leaves it.

        Args:
            states: Of all ps.
            ps: Their control planes.
        """
        self._log(states)
        if not self._calls.acquire(blocking=False):
            # A pause is being agreed on.
            return
        try:
            at = self.at
            for state, client in zip(states, ps, strict=True):
                if state is None or state.phase not in TRAINING or _hold_of(state) == at:
                    continue
                try:
                    client.schedule_hold(state.generation, at)
                except LostPeerError as error:
                    logger.debug("a ps does not know where training is held: %s", error)
        finally:
            self._calls.release()

    def _log(self, states: Sequence[pb.ShardState | None]) -> None:
        """Logs once that all ps are held at a step."""
        held = [state.step for state in states if state is not None and last_step(state) <= state.step]
        step = held[0] if len(held) == len(states) and is_held(states) else None
        if step is not None and step != self._logged:
            logger.info("held at step %d", step, extra={"event": "held", "step": step})
        self._logged = step

    @contextmanager
    def pausing(self, states: Sequence[pb.ShardState], ps: Sequence[PsClient]) -> Iterator[bool]:
        """Context manager that pauses a run that is not held, from the next step on which all ps agree.

        Args:
            states: Of all ps, which train one generation.
            ps: Their control planes.

        Yields:
            Whether all ps have accepted a step; True for a run that is held.
        """
        with self._calls:
            is_accepted = self._record is not None or self._propose(states, ps)
        try:
            yield is_accepted
        finally:
            with self._calls:
                self._pause_at = None

    def _propose(self, states: Sequence[pb.ShardState], ps: Sequence[PsClient]) -> bool:
        """A ps that is past a step refuses it; another one that has accepted it meanwhile has the next step, too."""
        present = max(state.step for state in states)
        for attempt in range(MAX_TRIES):
            step = self._update.due_step(present + (MIN_STEPS_AHEAD << attempt))
            try:
                replies = [client.schedule_hold(states[0].generation, step) for client in ps]
            except LostPeerError as error:
                logger.debug("no pause at step %d: %s", step, error)
                return False
            if all(reply.accepted for reply in replies):
                self._pause_at = step
                return True
            present = max(reply.step for reply in replies)
        return False

    def _write(self, record: HoldRecord) -> None:
        """Raises `StorageError` if the disk refuses it; then nothing has changed."""
        try:
            with self._disk.writing(self._out):
                record.write(self._out)
        except OSError as error:
            raise StorageError(f"{self._out / FILE_NAME} cannot be written: {error.strerror or error}") from error
        self._record = record


def _hold_of(state: pb.ShardState) -> int | None:
    return state.hold_at if state.HasField("hold_at") else None
