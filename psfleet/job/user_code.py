"""Tells a failure of the user's code in one line, with a traceback that begins in that code."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from psfleet.errors import ProgramError
from psfleet.job.job import Job

_MACHINERY = frozenset({"psfleet", "worker_service", "ps_service", "importlib", "keras", "tensorflow"})
"""Packages whose frames at the start of a traceback say nothing about the user's code."""

_EMBEDDED = "Traceback (most recent call last):\n"
"""Where TensorFlow puts the traceback of Python code that a data set calls into its error's message."""


@contextmanager
def user_code(job: Job, what: str) -> Iterator[None]:
    """Turns any exception inside, other than a ProgramError, into a ProgramError that carries its traceback."""
    try:
        yield
    except ProgramError:
        raise
    except (Exception, SystemExit) as error:
        raise failure(job, what, error) from error


def failure(job: Job, what: str, error: Exception | SystemExit) -> ProgramError:
    """An exception that the user's code raised while doing `what`."""
    text = re.sub(r"\{\{function_node .*?\}\} ", "", str(error))
    head, embedded, frames = text.partition(_EMBEDDED)
    reason = next((line.strip() for line in head.splitlines() if line.strip()), "no message")
    if embedded:
        details = embedded + _user_frames(frames.partition("\n\t [[")[0]).rstrip() + "\n"
    else:
        details = "".join(traceback.format_exception(type(error), error, _user_frame(error.__traceback__)))
        reason = f"{type(error).__name__}: {reason}"
    return ProgramError(f"program {job.program!r}: {what} raised {reason}", details)


def _user_frame(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None:
        package = frames.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _MACHINERY:
            return frames
        frames = frames.tb_next
    return None


def _user_frames(text: str) -> str:
    """The part of a formatted traceback that begins at the first frame outside of TensorFlow; all if there is none."""
    starts = [match.start() for match in re.finditer(r'^  File "(?!.*/site-packages/(tensorflow|keras)/)', text, re.M)]
    return text[starts[0] :] if starts else text
