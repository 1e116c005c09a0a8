"""Ends a chief whose disk does not answer: nothing interrupts a thread that waits for a network file system."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from psfleet.control import control_pb2 as pb
from psfleet.errors import PsfleetError, StorageError
from psfleet.service.process import log_end
from worker_service.chief.disk import Disk

logger = logging.getLogger("psfleet.chief")

LOOK_SECS = 1.0


def end_if_stuck(disk: Disk, stall_secs: float, finish: Callable[[pb.Outcome], object]) -> None:
    """Starts a thread that ends the run and this process, with 75, once a read or a write takes too long.

    Args:
        stall_secs: How long they may take.
        finish: Ends the run on every ps.
    """
    arguments = (disk, stall_secs, finish, os._exit)
    threading.Thread(target=watch, args=arguments, name="storage-watch", daemon=True).start()


def watch(
    disk: Disk, stall_secs: float, finish: Callable[[pb.Outcome], object], end_process: Callable[[int], object]
) -> None:
    """Returns once a read or a write takes too long and `end_process` was called; see `end_if_stuck`."""
    # Twice: a process that was frozen finds its write too old before the write ends.
    before = ""
    while not (stuck := disk.stuck(stall_secs)) or stuck != before:
        before = stuck
        time.sleep(LOOK_SECS)
    error = StorageError(stuck)
    with suppress(PsfleetError):
        finish(pb.Outcome(exit_code=error.exit_code, message=stuck))
    extra = {"event": "failed", "exit_code": error.exit_code}
    log_end(lambda: logger.error("%s", stuck, extra=extra), with_stacks=False)
    end_process(error.exit_code)
