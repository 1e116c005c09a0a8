"""Reads and writes JSON and other long lists in a process of its own, so that a front's event loop does not wait.

A thread would not do: it holds the interpreter's lock for the whole list. `python -m psfleet.inference.json_process` is
that process; it ends with the front, whose pipe it reads. What both send each other is pickled.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np

from psfleet.inference.query import Answer, Query
from psfleet.inference.rest_messages import answer_body, parse_query
from psfleet.inference.tensors import BYTES, QueryError, Status

MAX_READ_BYTES = 65_536
"""Of JSON, or of elements that are read one by one, that the event loop reads itself, in 5 to 20 ms."""
MAX_WRITTEN_ELEMENTS = 4096
"""Of tensors that it writes one by one itself, in about 5 ms."""
CALL_SECS = 60.0
"""Until the process is killed: 64 MiB take 20 s at most."""
MAX_DIGITS = 20
"""Of a length that may be one: Python converts a few thousand digits only."""


class JsonProcess:
    """Context manager for the process, which is started when it is needed first; used in one event loop."""

    def __init__(self) -> None:
        # One thread, since the process does one thing at a time.
        self._thread = ThreadPoolExecutor(1, "json")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None: none was needed."""
        return None if self._process is None else self._process.pid

    async def query(self, model: str, version: str, body: bytes, json_length: str | None) -> Query:
        """As `parse_query`."""
        is_number = json_length is not None and json_length.isdecimal() and len(json_length) < MAX_DIGITS
        size = int(json_length) if json_length is not None and is_number else len(body)
        # Elements of BYTES are read one by one in binary form, too; JSON may write the word with escapes.
        header = body[:size] if size <= MAX_READ_BYTES < len(body) else b""
        if min(size, len(body)) <= MAX_READ_BYTES and BYTES.encode() not in header and rb"\u" not in header:
            return parse_query(model, version, body, json_length)
        return await self.elsewhere(parse_query, model, version, body, json_length)

    async def answer_body(self, answer: Answer, query: Query) -> tuple[bytes, int | None]:
        """As `answer_body`."""
        if num_listed(answer, query.binary) <= MAX_WRITTEN_ELEMENTS:
            return answer_body(answer, query)
        return await self.elsewhere(answer_body, answer, query)

    async def elsewhere(self, call: Callable[..., Any], *args: object) -> Any:
        """Has the process make a call, whose function is one of a module.

        Raises:
            QueryError: The call has raised it, or the process has ended.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._called, call, args)

    def _called(self, call: Callable[..., Any], args: tuple[object, ...]) -> Any:
        if self._process is None:
            # -P: the current folder must not shadow Python's own modules.
            command = [sys.executable, "-P", "-m", "psfleet.inference.json_process"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = threading.Timer(CALL_SECS, self._process.kill)
        deadline.daemon = True
        deadline.start()
        try:
            pickle.dump((call, args), self._process.stdin)
            self._process.stdin.flush()
            status, result = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._end()
            raise QueryError(Status.FAILED, f"the process that reads and writes JSON has ended: {error!r}") from error
        finally:
            deadline.cancel()
        if status is not None:
            raise QueryError(Status[status], result)
        return result

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            # What the thread waits for.
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._end()


def num_listed(answer: Answer, raw: Collection[str] | None) -> int:
    """The number of elements that are written one by one.

    Args:
        raw: Names of the outputs that are written as they are in memory, unless they are BYTES; None: all.
    """
    return sum(
        tensor.size
        for name, tensor in answer.outputs.items()
        if tensor.dtype == np.object_ or (raw is not None and name not in raw)
    )


def main() -> None:
    """Makes the calls that come on standard input, until its end."""
    # Ctrl-C ends the front, which answers the queries that it has.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls, results = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            call, args = pickle.load(calls)
        except EOFError:
            return
        result: tuple[str | None, Any]
        try:
            result = None, call(*args)
        except QueryError as error:
            result = error.status.name, str(error)
        except Exception as error:
            result = Status.FAILED.name, f"{type(error).__name__}: {error}"
        pickle.dump(result, results)
        results.flush()


if __name__ == "__main__":
    main()
