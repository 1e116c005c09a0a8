"""The messages of the connections between a worker and a ps.

Each connection begins with a greeting of the worker and the answer of the ps, JSON with its length before it. After
that a push is a header and its tensors, and so is a reply. Both ends know the tensors of a message from the layout.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from psfleet.exchange.connection import Connection

M = TypeVar("M", bound=BaseModel)

LENGTH = struct.Struct("<I")
"""Before a greeting or an answer: its bytes."""
MAX_GREETING_BYTES = 1 << 12
PUSH = struct.Struct("<HHQ")
"""Header of a push: segment, loss, and bytes of the tensors."""
REPLY = struct.Struct("<HHQ")
"""Header of a reply: its kind, the segment, and bytes of what follows."""
MAX_TEXT_BYTES = 1 << 16


class Kind(IntEnum):
    """Of a reply.

    Attributes:
        PULLED: The tensors that a segment has after the push.
        ALIVE: Nothing: the ps still waits.
        ENDED: Text that says why the ps sends no further replies.
    """

    PULLED = 0
    ALIVE = 1
    ENDED = 2


class Greeting(BaseModel):
    """The first message of a worker on a connection.

    Attributes:
        version: Of psfleet.
        run: Name of the run.
        generation: That the worker has a session with.
        worker: Its index.
        incarnation: Of the process.
        session: A random text, the same on both connections.
        carries: What the connection is for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: str
    run: str
    generation: int
    worker: int = Field(ge=0)
    incarnation: int
    session: str
    carries: Literal["pushes", "replies"]


class Answer(BaseModel):
    """The answer of a ps: why it refuses a connection; empty: it does not."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    refusal: str = ""


def send_text(connection: Connection, message: BaseModel) -> None:
    """Sends a greeting or an answer; raises as `Connection`."""
    content = message.model_dump_json().encode()
    connection.send([LENGTH.pack(len(content)), content])


def receive_text(connection: Connection, kind: type[M]) -> M:
    """Receives a greeting or an answer.

    Raises:
        OSError: As `Connection`; or the other end sends something else.
    """
    (length,) = LENGTH.unpack(connection.receive(LENGTH.size))
    if length > MAX_GREETING_BYTES:
        raise ConnectionError(f"the other end sends {length} bytes, expected a {kind.__name__.lower()}")
    try:
        return kind.model_validate_json(connection.receive(length))
    except ValidationError as error:
        raise ConnectionError(f"the other end sends no {kind.__name__.lower()}: {error.errors()[0]['msg']}") from error
