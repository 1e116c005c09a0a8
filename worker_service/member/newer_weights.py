"""Looks for newer checkpoints of a member's run, and reads their weights while the member answers queries."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from psfleet.checkpoint import export, store
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import PsfleetError
from psfleet.job.service_access import MemberSource
from worker_service.member.model import found_checkpoint, has_program
from worker_service.predictions.weights import Weights, of_checkpoint, origin_of

logger = logging.getLogger("psfleet.member")

LOOK_SECS = 0.5
"""Interval for the newest checkpoint on a disk, of which a look reads one manifest."""
SLOW_LOOK_SECS = 10.0
"""Interval for an object store, where each look is a request, and for the best checkpoint, which each look verifies."""
INVALID_SECS = 60.0
"""Interval for one that is not valid: to find that out reads it, and logs a warning."""


class NewerWeights:
    """The thread that looks; `taken` is called by another one.

    A checkpoint that cannot be read is logged, and read again after a minute. The member answers with the weights that
    it has.

    Args of the constructor:
        source: A trial, or a checkpoint of a given step, has no newer weights.
        held: The weights that the member has been built with.
        clock: Monotonic time in seconds.

    Attributes:
        has_program: Whether the files of the program of the weights that were taken last are here.
    """

    def __init__(self, source: MemberSource, held: Weights, clock: Callable[[], float] = time.monotonic) -> None:
        self.has_program = True
        self._source = source
        self._origin = held.origin
        self._program = held.program
        self._lock = threading.Lock()
        self._newer: tuple[Weights, bool] | None = None
        self._problem = ""
        self._clock = clock
        self._newest = self._invalid = ""
        self._verified = 0.0

    def start(self) -> None:
        """Starts the thread, if there can be newer weights."""
        if self._source.run is not None and self._source.step is None:
            threading.Thread(target=self._look_forever, name="newer-weights", daemon=True).start()

    def taken(self) -> Weights | None:
        """The newest weights that were not taken yet; None: there are none."""
        with self._lock:
            newer, self._newer = self._newer, None
        if newer is None:
            return None
        weights, self.has_program = newer
        return weights

    def look(self) -> None:
        """Reads the weights that the member should have, if they are others."""
        try:
            if not self._has_changed():
                return
            checkpoint = found_checkpoint(self._source)
            if origin_of(checkpoint) == self._origin:
                self._invalid, self._verified = self._newest, self._clock()
                return
            weights = of_checkpoint(checkpoint)
            is_here = weights.program == self._program or has_program(self._source, checkpoint)
        except (PsfleetError, OSError) as error:
            self._invalid, self._verified = self._newest, self._clock()
            if str(error) != self._problem:
                logger.warning("no newer checkpoint: %s", error)
            self._problem = str(error)
            return
        with self._lock:
            self._newer = weights, is_here
        self._origin, self._problem = weights.origin, ""

    def _has_changed(self) -> bool:
        """Whether the newest checkpoint is another one, without verifying it; not if it was just found invalid."""
        if self._source.best:
            return True
        assert self._source.run is not None, "of a run"
        newest = store.newest_committed(export.root_of_run(parse(self._source.run)))
        if newest is None:
            return False
        self._newest = origin_of(newest)
        is_invalid = self._newest == self._invalid and self._clock() - self._verified < INVALID_SECS
        return self._newest != self._origin and not is_invalid

    def _look_forever(self) -> None:
        assert self._source.run is not None, "of a run"
        is_slow = self._source.best or isinstance(parse(self._source.run), StoreFolder)
        pause = threading.Event()
        while True:
            self.look()
            pause.wait(SLOW_LOOK_SECS if is_slow else LOOK_SECS)
