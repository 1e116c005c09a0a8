"""A file as a stream of messages: its data in chunks, then a SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from psfleet.control import driver_control_pb2 as pb
from psfleet.control.download import CHUNK_BYTES
from psfleet.errors import LostPeerError


def sending(path: Path) -> Iterator[pb.FileMessage]:
    """The messages for the content of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
            yield pb.FileMessage(data=data)
    yield pb.FileMessage(sha256=digest.hexdigest())


def receive(messages: Iterator[pb.FileMessage], write: Callable[[bytes], Any], name: str) -> None:
    """Writes the data of a stream.

    Raises:
        LostPeerError: It has ended early, or was changed on its way.
    """
    digest = hashlib.sha256()
    for message in messages:
        if message.sha256:
            if message.sha256 != digest.hexdigest():
                raise LostPeerError(f"file {name!r} was changed on its way")
            return
        digest.update(message.data)
        write(message.data)
    raise LostPeerError(f"the stream of file {name!r} has ended early")
