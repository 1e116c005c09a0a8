"""Ends the processes that a training program has started together with its service, however the service ends.

`os._exit`, a crash and SIGKILL skip every clean-up of Python, and PR_SET_PDEATHSIG of prctl(2) is not inherited by
children. So a separate process waits for the end of the service, and then kills the service's process group. A process
that has left the group (`start_new_session`) is not ended. In a container this is not needed: all its processes end
with process 1, or are ended by its child (`worker_service.watched_process`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
from contextlib import suppress

logger = logging.getLogger("psfleet")

PR_SET_NAME = 15
"""prctl(2): the name of this thread, in `ps -o comm` and `top`."""
NAME = b"psfleet-reaper"
NUM_STANDARD_FILES = 3


def end_group_with_this_process() -> None:
    """Starts a process that waits for the end of this one and then kills its process group, if this process leads it.

    It is a grandchild, not a child, because a training program may wait for all children of its process.
    """
    if not sys.platform.startswith("linux") or os.getpgrp() != os.getpid():
        return
    try:
        leader = os.pidfd_open(os.getpid())
    except OSError as error:
        logger.warning("processes that the program starts can outlive this one: pidfd_open: %s", error.strerror)
        return
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                _await_end(leader)
        finally:
            os._exit(0)
    os.close(leader)
    os.waitpid(child, 0)


def _await_end(leader: int) -> None:
    """Kills this process group, this process included, once the process of a pidfd has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.CDLL(None).prctl(PR_SET_NAME, NAME)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(NUM_STANDARD_FILES):
        os.dup2(nothing, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number >= NUM_STANDARD_FILES and number != leader:
            with suppress(OSError):
                os.close(number)
    ended = select.poll()
    ended.register(leader, select.POLLIN)
    ended.poll()
    os.killpg(0, signal.SIGKILL)
