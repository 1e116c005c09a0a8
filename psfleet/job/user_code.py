"""Converts exceptions of the user's code to a ProgramError with one line and a traceback that begins in that code."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from psfleet.errors import ProgramError
from psfleet.job.job import Job

_FRAMEWORKS = frozenset({"psfleet", "worker_service", "ps_service", "importlib", "keras", "tensorflow"})
"""Packages whose frames are removed from the start of a traceback."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Escape sequences of a terminal, which Keras puts into messages."""

_IN_LAYER = re.compile(r"Exception encountered when calling (.*?\.call\(\))")
"""Start of the message of an exception that passed through a Keras layer."""

_MACHINERY = re.compile(
    r"\{\{function_node .*?\}\} "
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
    r"| \[Op:\w+\] name: ?"
)
"""What TensorFlow writes around the message of an operation: where in its graph the operation is."""

_IN_GRAPH = "Graph execution error:"
"""Header of the message of an operation of a `tf.function`; after it is where in the program the operation was made."""

_ORIGIN = re.compile(r'File "|Detected at node |Node: |<stack traces unavailable>')
"""Start of a line about that place."""

_IN_USER_CODE = "in user code:"
"""Header of the message of an exception in a function that AutoGraph has converted; frames and the cause follow."""

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)\b")
"""Start of the line of a cause."""

_EMBEDDED = "Traceback (most recent call last):\n"
"""Start of the traceback that TensorFlow embeds in an error message if a data set's Python function raised."""


@contextmanager
def user_code(job: Job, what: str) -> Iterator[None]:
    """Converts any exception in the block to a ProgramError that contains its traceback."""
    try:
        yield
    except ProgramError:
        raise
    except (Exception, SystemExit) as error:
        raise failure(job, what, error) from error


def failure(job: Job, what: str, error: Exception | SystemExit) -> ProgramError:
    """The ProgramError for an exception that the user's code raised in `what`."""
    text = _MACHINERY.sub("", str(error))
    head, embedded, frames = text.partition(_EMBEDDED)
    reason = _reason(head)
    if embedded:
        details = embedded + _user_frames(frames.partition("\n\t [[")[0]).rstrip() + "\n"
    else:
        frames_of_user = _user_frame(error.__traceback__)
        details = _COLOURS.sub("", "".join(traceback.format_exception(type(error), error, frames_of_user)))
        kind = f"{type(error).__name__}: "
        reason = kind + reason.removeprefix(kind)
    return ProgramError(f"program {job.program!r}: {what} raised {reason}", details)


def _reason(message: str) -> str:
    """The line of an error message that states the cause; for an error in a layer or a graph it is after a header."""
    lines = [line.strip() for line in _COLOURS.sub("", message).splitlines()]
    lines = [line for line in lines if line] or ["no message"]
    if _IN_USER_CODE in lines[:3] and lines[-1] != _IN_USER_CODE:
        # AutoGraph: the frames follow, and the cause is last.
        lines = [*lines[: lines.index(_IN_USER_CODE)], *_cause(lines)]
    if lines[0] == _IN_GRAPH:
        lines = [line for line in lines[1:] if not _ORIGIN.match(line)] or lines
    in_layer = _IN_LAYER.match(lines[0])
    if in_layer and len(lines) > 1:
        return f"{lines[1]} (in {in_layer[1]})"
    return lines[0]


def _cause(lines: list[str]) -> list[str]:
    """The end of a message of AutoGraph, from the line that names the exception."""
    found = [at for at, line in enumerate(lines) if _EXCEPTION.match(line)]
    return lines[found[-1] :] if found else lines[-1:]


def _user_frame(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the user's code; None if it has none."""
    while frames is not None:
        package = frames.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _FRAMEWORKS:
            return frames
        frames = frames.tb_next
    return None


def _user_frames(text: str) -> str:
    """A formatted traceback from its first frame outside TensorFlow and Keras; all of it if there is none."""
    starts = [match.start() for match in re.finditer(r'^  File "(?!.*/site-packages/(tensorflow|keras)/)', text, re.M)]
    return text[starts[0] :] if starts else text
