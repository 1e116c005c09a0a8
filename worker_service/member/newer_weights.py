"""Looks for newer checkpoints of a member's run, and reads their weights while the member answers queries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from psfleet.checkpoint import export, store
from psfleet.checkpoint.location import Folder, parse
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import PsfleetError
from psfleet.job.service_access import MemberSource
from worker_service.member.model import Weights, checkpoint_weights, found_checkpoint

logger = logging.getLogger("psfleet.member")

LOOK_SECS = 0.5
"""Interval for a folder on a disk."""
STORE_LOOK_SECS = 10.0
"""Interval for an object store, where each look is a request."""


class NewerWeights:
    """The thread that looks; `taken` is called by another one.

    A checkpoint that cannot be read is skipped with a warning: the member answers with the weights that it has.

    Args of the constructor:
        source: A trial, or a checkpoint of a given step, has no newer weights.
        step: Of the weights that the member has.
        find: Returns the weights that the member should have.
    """

    def __init__(
        self,
        source: MemberSource,
        step: int,
        find: Callable[[MemberSource, int], Weights | None] | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._source = source
        self._step = step
        self._find = find or _found
        self._pause = pause or threading.Event().wait
        self._lock = threading.Lock()
        self._newer: Weights | None = None

    def start(self) -> None:
        """Starts the thread, if there can be newer weights."""
        if self._source.run is not None and self._source.step is None:
            threading.Thread(target=self._look_forever, name="newer-weights", daemon=True).start()

    def taken(self) -> Weights | None:
        """The newest weights that were not taken yet; None: there are none."""
        with self._lock:
            newer, self._newer = self._newer, None
            return newer

    def look(self) -> None:
        """Reads the weights that the member should have, if they are others."""
        try:
            found = self._find(self._source, self._step)
        except (PsfleetError, OSError) as error:
            logger.warning("no newer checkpoint: %s", error)
            return
        if found is not None:
            with self._lock:
                self._newer = found
            self._step = found.step

    def _look_forever(self) -> None:
        assert self._source.run is not None, "of a run"
        secs = STORE_LOOK_SECS if isinstance(parse(self._source.run), StoreFolder) else LOOK_SECS
        seen: list[str] | None = None
        while True:
            names = _names(export.root_of_run(parse(self._source.run)))
            # The best checkpoint changes by an evaluation, which adds no folder.
            if names != seen or self._source.best:
                self.look()
            seen = names
            self._pause(secs)


def _names(root: Folder) -> list[str]:
    """The names of all complete checkpoints."""
    return [str(each.folder) for each in store.committed_checkpoints(root)]


def _found(source: MemberSource, step: int) -> Weights | None:
    checkpoint = found_checkpoint(source)
    return None if checkpoint.step == step else checkpoint_weights(checkpoint)
