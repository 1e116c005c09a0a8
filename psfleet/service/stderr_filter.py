"""Keeps what TensorFlow writes to standard error when it starts from the users of a command."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

TENSORFLOWS_OWN = re.compile(
    r"WARNING: All log messages before absl::InitializeLog|I\d{4} \d\d:\d\d:\d\d"
    r"|E\d{4} [^]]*util\.cc:\d+\] oneDNN supports DT_\w+ only on platforms with"
)
"""Lines that TensorFlow writes when it is imported, whatever its log level is, and those that say that tensors of a
type, such as masks, are computed without oneDNN."""


@contextmanager
def without_tensorflows_own() -> Iterator[None]:
    """Context manager that holds standard error back to its end, and then writes it without `TENSORFLOWS_OWN`.

    It works on the file descriptor, to which TensorFlow writes past Python. A process without one needs no filter.
    """
    if sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with tempfile.TemporaryFile() as held:
            os.dup2(held.fileno(), 2)
            try:
                yield
            finally:
                sys.stderr.flush()
                os.dup2(before, 2)
                held.seek(0)
                lines = held.read().decode(errors="replace").splitlines(True)
                os.write(2, "".join(line for line in lines if not TENSORFLOWS_OWN.match(line)).encode())
    finally:
        os.close(before)
