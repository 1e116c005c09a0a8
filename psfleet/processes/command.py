"""A process that the launcher starts: the command, and the interface to the running process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol


class Process(Protocol):
    """A process that the launcher started; `subprocess.Popen` is one."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None:
        """Its exit code, -n if signal n ended it; None while it runs."""

    def wait(self) -> int:
        """Waits for its end; its exit code."""

    def send_signal(self, sig: int, /) -> None:
        """Sends a signal, if it still runs."""


@dataclass(frozen=True)
class Command:
    """One process to start.

    Attributes:
        module: Run as `python -P -m module`.
        title: What `ps` and `top` show for a forked process.
        environment: The complete environment.
        log: The file to which the process's output is appended.
    """

    module: str
    title: str
    environment: Mapping[str, str]
    log: Path

    def start_alone(self) -> subprocess.Popen[bytes]:
        """Starts the process in a new Python interpreter."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                _arguments(self.module),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.environment,
                start_new_session=True,
            )  # fmt: skip


def become(module: str, environment: Mapping[str, str]) -> NoReturn:
    """Replaces this process by `python -P -m module`: its process id, files, signals and exit code are the module's."""
    _become(_arguments(module), environment)


def become_script(script: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replaces this process by `python script arguments`, as `become` does."""
    _become([sys.executable, str(script), *arguments], environment)


def _become(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, dict(environment))


def _arguments(module: str) -> list[str]:
    # -P: the user's current folder must not shadow Python's own modules.
    return [sys.executable, "-P", "-m", module]
