"""Ends a process, and what it has started, with the process that has started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

from psfleet.errors import BadJobError
from psfleet.service.children import end_group_with_this_process
from psfleet.service.settings import PARENT

PARENT_SECS = 0.5
"""Interval in which a process looks for its parent where the kernel does not announce its death."""
PR_SET_PDEATHSIG = 1
"""prctl(2): sets the signal that this process receives when its parent dies."""


def end_with_parent() -> None:
    """Ends this process and its process group with the parent that PSFLEET_PARENT names; without it does nothing."""
    end_group_with(int(os.environ.get(PARENT) or 0))


def end_group_with(parent_pid: int) -> None:
    """Ends this process and its process group with the parent.

    Args:
        parent_pid: As for `die_with`, whose errors this raises.
    """
    die_with(parent_pid)
    if parent_pid:
        end_group_with_this_process()


def die_with(parent_pid: int) -> None:
    """Makes the kernel kill this process when its parent dies; without Linux, a thread notices it within a second.

    Args:
        parent_pid: Process id of the launcher or of its fork server; 0: this process has no such parent.

    Raises:
        BadJobError: The parent is already dead.
    """
    if not parent_pid:
        return
    is_linux = sys.platform.startswith("linux")
    if is_linux:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise BadJobError(f"the launcher with process id {parent_pid} is gone")
    if not is_linux:
        threading.Thread(target=_kill_without, args=(parent_pid,), name="parent", daemon=True).start()


def _kill_without(parent_pid: int) -> None:
    """Waits for the end of the parent, and then kills this process, with its process group if it leads one."""
    pause = threading.Event()
    while os.getppid() == parent_pid:
        pause.wait(PARENT_SECS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
