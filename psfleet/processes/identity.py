"""Identifies a process of this machine for longer than its process id, which the kernel gives to others later."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
BOOT_ID = PROC / "sys/kernel/random/boot_id"
ZOMBIE = "Z"


def identity(pid: int) -> str:
    """What distinguishes a running process from all others that have its id, before and after; empty: it has ended.

    On Linux: the machine's boot, and the process's start in clock ticks after it (proc_pid_stat(5), field 22).
    """
    if not PROC.exists():
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        # The second field, in brackets, may have spaces.
        state, *fields = (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state == ZOMBIE else f"{BOOT_ID.read_text().strip()}:{fields[18]}"


def is_alive(pid: int, identity_: str) -> bool:
    """Whether the process that had an id and identity still runs."""
    return bool(identity_) and identity(pid) == identity_


def send_signal(pid: int, identity_: str, number: int = signal.SIGKILL) -> None:
    """Sends a signal to a process, unless it has ended."""
    if is_alive(pid, identity_):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
