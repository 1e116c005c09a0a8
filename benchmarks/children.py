"""Child processes that are watched together and end with the context that started them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from psfleet.service.library_variables import for_kernels

GRACE_SECS = 30.0
"""From SIGTERM to SIGKILL: enough for a psfleet launcher to end its own children."""
TAIL_LINES = 25


class ChildError(Exception):
    """A child ended too early, with an exit code other than 0, or not by its deadline; the message has its output."""


class Child:
    """One process: its handle, the lines that it printed and the file with its stderr."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.lines: deque[str] = deque()
        self.last_lines: deque[str] = deque(maxlen=TAIL_LINES)
        self.log = log
        self.has_ended = False
        with log.open("wb") as stderr:
            # Peers compute with oneDNN where psfleet does.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**for_kernels(), **os.environ},
            )
        if self.process.stdin is None or self.process.stdout is None:
            raise ChildError(f"{name} was started without pipes")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def tail(self) -> str:
        """The end of what the child wrote to stdout and stderr."""
        errors = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([*self.last_lines, *errors])


class Children:
    """A context manager that starts children, and ends those that still run at its exit."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._printed: queue.SimpleQueue[tuple[Child, str | None]] = queue.SimpleQueue()
        self._logs = tempfile.TemporaryDirectory(prefix="psfleet-bench-logs-")

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in self._children:
            child.process.terminate()
        deadline = time.monotonic() + GRACE_SECS
        for child in self._children:
            try:
                child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.stdin.close()
        self._logs.cleanup()

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Starts a command whose stdout is read line by line."""
        child = Child(name, command, Path(self._logs.name) / f"{name}.log")
        self._children.append(child)
        threading.Thread(target=self._read, args=(child,), daemon=True).start()
        return child

    def pids(self) -> list[int]:
        """Ids of all children so far."""
        return [child.process.pid for child in self._children]

    def send(self, child: Child, line: str) -> None:
        """Writes one line to the child's stdin.

        Raises:
            ChildError: The child has ended.
        """
        try:
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
        except BrokenPipeError as error:
            raise ChildError(f"{child.name} ended before it received: {line}\n{child.tail()}") from error

    def receive(self, child: Child, what: str, timeout_secs: float) -> Any:
        """The next JSON line of a child.

        Raises:
            ChildError: It did not come by the deadline, or any child ended before it.
        """
        deadline = time.monotonic() + timeout_secs
        while not child.lines:
            ended = self._next_line(child, what, timeout_secs, deadline)
            if ended is not None and not child.lines:
                code = ended.process.wait(GRACE_SECS)
                raise ChildError(f"{ended.name} ended with exit code {code} before {what}\n{ended.tail()}")
        return json.loads(child.lines.popleft())

    def wait(self, child: Child, what: str, timeout_secs: float) -> None:
        """Waits until a child has ended with exit code 0.

        Raises:
            ChildError: It did not end by the deadline, or with another exit code.
        """
        deadline = time.monotonic() + timeout_secs
        while not child.has_ended:
            self._next_line(child, what, timeout_secs, deadline)
            child.lines.clear()
        code = child.process.wait(GRACE_SECS)
        if code:
            raise ChildError(f"{child.name} ended with exit code {code} during {what}\n{child.tail()}")

    def _next_line(self, child: Child, what: str, timeout_secs: float, deadline: float) -> Child | None:
        """Stores the next line of any child; returns the child if it has ended."""
        try:
            source, line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty as error:
            raise ChildError(
                f"gave up after {timeout_secs:g} s waiting for {what} of {child.name}\n{child.tail()}"
            ) from error
        if line is None:
            source.has_ended = True
            return source
        source.lines.append(line)
        source.last_lines.append(line)
        return None

    def _read(self, child: Child) -> None:
        with child.stdout as stdout:
            for line in stdout:
                self._printed.put((child, line.rstrip("\n")))
        self._printed.put((child, None))
