"""Identifies a process of this machine for longer than its process id, which the kernel gives to others later."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
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


def started_with(variables: Mapping[str, str]) -> int:
    """The id of a running process that was started with these environment variables, among others; 0: there is none.

    Only on Linux, and only a process of this user: proc_pid_environ(5).
    """
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            found = (folder / "environ").read_bytes().split(b"\0")
            if wanted.issubset(found) and identity(int(folder.name)):
                return int(folder.name)
    return 0


def is_alive(pid: int, identity_: str) -> bool:
    """Whether the process that had an id and identity still runs."""
    return bool(identity_) and identity(pid) == identity_


def send_signal(pid: int, identity_: str, number: int = signal.SIGKILL) -> None:
    """Sends a signal to a process, unless it has ended."""
    if is_alive(pid, identity_):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
