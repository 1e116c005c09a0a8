"""Output of a command whose reader may end before the command does, as in `psfleet logs JOB | head`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console

from psfleet import errors

NO_READER = errors.SIGNAL_BASE + signal.SIGPIPE
"""Exit code of a command that only prints, once the reader of its output has ended; as of GNU tools."""


class Output:
    """A text stream that discards everything after the first write that fails.

    Click and rich end a command with exit code 1 on EPIPE, which stands for a bug; so they must not see it.

    Args of the constructor:
        stream: stdout or stderr.
        is_optional: Whether the command continues. Otherwise it ends with `NO_READER`, or with the error if that is
            another one, for example of a full disk.
    """

    def __init__(self, stream: IO[str], is_optional: bool) -> None:
        self.stream = stream
        self._is_optional = is_optional

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """As `IO.write`."""
        with self._checked():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As `IO.flush`."""
        with self._checked():
            self.stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            self._discard()
            if self._is_optional:
                return
            if isinstance(error, BrokenPipeError):
                raise SystemExit(NO_READER) from None
            raise

    def _discard(self) -> None:
        """Redirects the stream to nothing: Python writes what is left in its buffer again when it exits."""
        with suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.stream.fileno())
            os.close(nothing)


@contextmanager
def guarded() -> Iterator[None]:
    """Makes stdout end the command if its reader ends, and stderr optional, while the block runs."""
    before = sys.stdout, sys.stderr
    # Both are None if the process was started without them.
    if sys.stdout is not None:
        sys.stdout = cast("Any", Output(sys.stdout, is_optional=False))
    if sys.stderr is not None:
        sys.stderr = cast("Any", Output(sys.stderr, is_optional=True))
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def progress_console() -> Console:
    """The console of a command that trains: the run continues without it, and decides the exit code."""
    stream = sys.stdout
    if stream is None:
        return Console(soft_wrap=True)
    stream = stream.stream if isinstance(stream, Output) else stream
    return Console(soft_wrap=True, file=cast("IO[str]", Output(stream, is_optional=True)))
