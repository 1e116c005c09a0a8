"""A checkpoint part as it arrives from a ps, with the time for which nothing has arrived."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from psfleet.errors import PsfleetError

CHUNK_BYTES = 1024 * 1024
"""Of the chunks in which parts and restored shards travel; gRPC's flow control holds back all but a few."""


class Download:
    """The chunks of a part in their order; to be iterated once, by one thread.

    A large part takes as long as it takes, so the call has no deadline: another thread ends it once `idle_secs` is too
    long. What the caller does with a chunk does not count.

    Args of the constructor:
        call: The chunks, as gRPC returns them.
        to_error: Returns what the end of the call with an error means.
    """

    def __init__(
        self,
        call: Any,
        to_error: Callable[[grpc.RpcError], PsfleetError],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call = call
        self._to_error = to_error
        self._clock = clock
        self._waits_since: float | None = clock()

    def __iter__(self) -> Iterator[bytes]:
        """The chunks.

        Raises:
            PsfleetError: The call has ended with an error; also after `cancel`.
        """
        self._waits_since = self._clock()
        try:
            for chunk in self._call:
                self._waits_since = None
                yield chunk.data
                self._waits_since = self._clock()
        except grpc.RpcError as error:
            raise self._to_error(error) from error
        finally:
            self._waits_since = None

    def idle_secs(self) -> float:
        """How long it has waited for the present chunk; 0 while the caller has one."""
        since = self._waits_since
        return 0.0 if since is None else self._clock() - since

    def cancel(self) -> None:
        """Ends the call; nothing happens if it has ended."""
        self._call.cancel()
