"""Hosts as network namespaces of this machine; needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.children import ChildError

PROGRAMS = ("ip", "nsenter")
COMMAND_SECS = 20.0


@dataclass(frozen=True)
class Host:
    """A network namespace with loopback and one other interface.

    Attributes:
        name: Of the namespace, in /run/netns.
        ip: The address of that interface.
    """

    name: str
    ip: str

    def command(self, command: Sequence[str]) -> list[str]:
        """A command line that runs another one on this host."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]

    def set_up(self, device: str) -> None:
        """Gives an interface of the namespace the address, and turns it and loopback on.

        Raises:
            ChildError: A command failed.
        """
        execute("ip", "-n", self.name, "address", "add", f"{self.ip}/24", "dev", device)
        for each in (device, "lo"):
            execute("ip", "-n", self.name, "link", "set", each, "up")


def why_impossible(*programs: str) -> str | None:
    """One line if this user has no such hosts, or if one of further programs is missing; else None."""
    missing = [program for program in (*PROGRAMS, *programs) if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not found, expected iproute2 and util-linux"
    if os.geteuid() != 0:
        return "the user is not root, expected root: hosts are network namespaces"
    return None


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[None]:
    """Adds network namespaces, and deletes them after the block.

    Raises:
        ChildError: A command failed.
    """
    with ExitStack() as stack:
        for name in names:
            execute("ip", "netns", "add", name)
            stack.callback(execute, "ip", "netns", "delete", name)
        yield


def execute(*command: str) -> None:
    """Runs a command to its end.

    Raises:
        ChildError: It failed, or has not ended in time.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECS)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"{' '.join(command)}: no end after {COMMAND_SECS:g} s") from error
    if done.returncode != 0:
        raise ChildError(f"{' '.join(command)}: {done.stderr.strip()}")
