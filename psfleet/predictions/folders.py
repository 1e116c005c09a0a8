"""The folder of the shares, beside the file that is made of them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from psfleet.errors import PERMANENT_CODES, PsfleetError, UsageError
from psfleet.files import LOCK, only_user
from psfleet.job.prediction_files import Request
from psfleet.predictions.files import complete_share


@contextmanager
def temporary(out: Path, request: Request) -> Iterator[tuple[Path, Request]]:
    """Context manager for a hidden folder on the disk of a file, which only this user can enter, with the request.

    Raises:
        UsageError: The disk cannot be written; also if an OSError ends the block.
    """
    with writable(out):
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent)).absolute()
        try:
            request.write(folder)
            yield folder, request
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def kept(out: Path, request: Request) -> Iterator[tuple[Path, Request]]:
    """As `temporary`, but a driver that is started again after a temporary error or a signal finds the shares.

    If they are of another request, it begins again.
    """
    folder = (out.parent / f".{out.name}-shares").absolute()
    with writable(out), only_user(folder, "psfleet predict"):
        folder.chmod(0o700)
        resumed = _resumed(folder, request)
        try:
            yield folder, resumed
        except PsfleetError as error:
            if error.exit_code in PERMANENT_CODES:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _resumed(folder: Path, request: Request) -> Request:
    """The request of the attempt that a folder has, or of a new one in an empty folder."""
    try:
        before = Request.read(folder)
        if before.model_copy(update={"attempt": "", "complete": ()}) == request:
            for index in range(request.workers):
                complete_share(folder, index, before.attempt)
            for path in folder.glob(".*.tmp"):
                # Of a file that was on its way.
                path.unlink()
            return before
    except (FileNotFoundError, ValidationError, PsfleetError):
        # Nothing is there, or a power failure has damaged it.
        pass
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()
    begun = request.model_copy(update={"attempt": secrets.token_hex(8), "complete": ()})
    begun.write(folder)
    return begun


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """Context manager in which an OSError means that the file, or the folder beside it, cannot be written.

    Raises:
        UsageError: There was one.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
