"""The messages of the connections between a worker and a ps.

Each connection begins with a greeting of the worker and the answer of the ps, JSON with its length before it. After
that a push is a header and its tensors, and so is a reply. Both ends know the tensors of a message from the layout.
On a Unix socket the receiver of tensors can share memory with the sender, which then puts large messages there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from psfleet.exchange.connection import Connection

M = TypeVar("M", bound=BaseModel)

LENGTH = struct.Struct("<I")
"""Before a greeting or an answer: its bytes."""
MAX_GREETING_BYTES = 1 << 12
MAX_TEXT_BYTES = 1 << 16


NOWHERE = (1 << 64) - 1
"""Instead of a place in shared memory: there is none."""
_PLACE, _PUSH, _REPLY = struct.Struct("<Q"), struct.Struct("<HHQQQ"), struct.Struct("<HHHQQQ")


class Push(NamedTuple):
    """The header of a push.

    Attributes:
        segment, loss: What it is for.
        num_bytes: Of its tensors.
        at: Where they are in the memory that the ps shares; `NOWHERE`: they follow.
        reply_at: Where the ps may put the reply in the memory that the worker shares.
    """

    segment: int
    loss: int
    num_bytes: int
    at: int = NOWHERE
    reply_at: int = NOWHERE

    def send(self, connection: Connection, pieces: Sequence[np.ndarray] = ()) -> None:
        """Sends it, and what follows; raises as `Connection`."""
        connection.send([_PUSH.pack(*self), *pieces])

    @classmethod
    def receive(cls, connection: Connection) -> Push:
        """Receives one; raises as `Connection`."""
        return cls(*_PUSH.unpack(connection.receive(_PUSH.size)))


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


class Reply(NamedTuple):
    """The header of a reply.

    Attributes:
        kind: What follows.
        segment, loss: Of the push.
        num_bytes: Of the tensors, or of the text.
        at: Where the tensors are in the memory that the worker shares; `NOWHERE`: they follow.
        push_at: Where the worker may put its next push to this segment and loss in the memory that the ps shares.
    """

    kind: int
    segment: int = 0
    loss: int = 0
    num_bytes: int = 0
    at: int = NOWHERE
    push_at: int = NOWHERE

    def send(self, connection: Connection, pieces: Sequence[np.ndarray | bytes] = ()) -> None:
        """Sends it, and what follows; raises as `Connection`."""
        connection.send([_REPLY.pack(*self), *pieces])

    @classmethod
    def receive(cls, connection: Connection) -> Reply:
        """Receives one; raises as `Connection`."""
        return cls(*_REPLY.unpack(connection.receive(_REPLY.size)))


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


def send_places(connection: Connection, places: Sequence[int]) -> None:
    """Sends where the first messages of each kind may be put in shared memory; raises as `Connection`."""
    connection.send([_PLACE.pack(each) for each in places])


def receive_places(connection: Connection, count: int) -> list[int]:
    """Receives them; raises as `Connection`."""
    return [each for (each,) in _PLACE.iter_unpack(connection.receive(count * _PLACE.size))]


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
