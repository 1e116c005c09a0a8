"""Files that are replaced as a whole, and locks of files and folders, which end with the process that has them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from psfleet.errors import UsageError

LOCK = ".lock"
"""Name of the file in a folder that is locked as a whole."""


def replace_file(path: Path, content: str | bytes, writer: str = "") -> None:
    """Writes a file under another name in its folder, and renames it; it need not be there before.

    Whoever reads it, also after a crash, finds what was there before or all that is new.
    It is not flushed to the disk: after a power failure it may be empty.

    Args:
        path: The file.
        content: A text is written as UTF-8.
        writer: Distinguishes processes that may write at the same time; empty: there is only one.

    Raises:
        OSError: The folder cannot be written; the file is as it was.
    """
    names = [path.name.lstrip("."), *([writer] if writer else []), "tmp"]
    temporary = path.with_name("." + ".".join(names))
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)


@contextmanager
def replaced_file(path: Path, writer: str) -> Iterator[IO[bytes]]:
    """Context manager for a file that is written piece by piece; it replaces `path` if the block ends without an error.

    Args:
        writer: As for `replace_file`.

    Raises:
        OSError: The folder cannot be written; the file is as it was.
    """
    temporary = path.with_name(f".{path.name.lstrip('.')}.{writer}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def try_lock(lock: IO[str] | int, kind: int) -> bool:
    """Locks an open file, shared or exclusively; False if another process has it.

    Args:
        kind: `fcntl.LOCK_SH` or `fcntl.LOCK_EX`.
    """
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def folder_lock(folder: Path) -> Iterator[IO[str]]:
    """Context manager for the open file of a folder's lock; the folder is created if it is missing.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}, expected a folder that can be written") from error
    with lock:
        yield lock


@contextmanager
def only_user(folder: Path, command: str) -> Iterator[None]:
    """Context manager during which no other process uses a folder, which is created if it is missing.

    Args:
        command: That uses it, for the message.

    Raises:
        UsageError: Another one uses it, or it cannot be written.
    """
    with folder_lock(folder) as lock:
        if not try_lock(lock, fcntl.LOCK_EX):
            raise UsageError(f"another {command} uses {folder}, expected it to have ended, or another --out")
        yield


def require_utf8(path: Path) -> Path:
    """The same path, if it can be text in messages and reports.

    Raises:
        UsageError: It cannot.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{str(path)!r} is not UTF-8, expected a path that is") from error
    return path
