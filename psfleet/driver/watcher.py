"""Starts the workers of a driver, and finds those whose process has ended or gives no sign of life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psfleet import errors
from psfleet.driver.silence import Silence
from psfleet.driver.worker import Worker
from psfleet.errors import LostPeerError
from psfleet.job.sections import Deadlines


@dataclass
class WatchedWorker:
    """A worker, and what its driver knows of it.

    Attributes:
        worker: Its process.
        silence: How long the process has given no sign of life.
        deaths: Processes that died, since the driver has set it to 0.
        is_done: Whether it is no longer watched.
    """

    worker: Worker
    silence: Silence
    deaths: int = 0
    is_done: bool = False

    @property
    def index(self) -> int:
        """Of the worker."""
        return self.worker.index

    def __str__(self) -> str:
        """For messages: `worker 1`."""
        return f"worker {self.index}"

    def start(self, cause: str = "") -> None:
        """Starts a process; a restart has a cause."""
        self.silence.restart()
        self.worker.start(cause)

    def count_death(self, cause: str, limit: int, during: str = "") -> None:
        """Counts a death.

        Args:
            limit: Of `deaths`.
            during: For the message: what the worker has not reached since then.

        Raises:
            LostPeerError: It has died more often.
        """
        self.deaths += 1
        if self.deaths > limit:
            raise LostPeerError(f"{self} died {self.deaths} times{during}, last: {cause}")


@dataclass(frozen=True)
class End:
    """The end of a worker's process, which does nothing from here on.

    Attributes:
        cause: In one line.
        code: Exit code, 128 + n after signal n.
        failure: See `Worker.failure`.
    """

    watched: WatchedWorker
    cause: str
    code: int
    failure: dict[str, Any] | None

    @property
    def is_by_program(self) -> bool:
        """Whether the training program ended the process, by `os._exit` for example.

        A worker logs or reports its failure in all other cases; only if the disk is full does it not, and ends with
        `errors.LOST_PEERS`.
        """
        return self.failure is None and self.code < errors.SIGNAL_BASE and self.code != errors.LOST_PEERS


class WorkerWatcher:
    """The workers of a driver; used by one thread, and closed at the end.

    Args of the constructor:
        deadlines: Of the job.
        clock: Monotonic time in seconds.

    Attributes:
        workers: By index.
    """

    def __init__(
        self, workers: Sequence[Worker], deadlines: Deadlines, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.workers = [WatchedWorker(each, Silence(each.newest_sign, deadlines, clock)) for each in workers]
        self._start_secs = deadlines.start_secs
        self._clock = clock
        self._seen = clock()

    def start(self) -> None:
        """Starts all processes."""
        self._seen = self._clock()
        for each in self.workers:
            each.start()

    def ends(self) -> Iterator[End]:
        """The workers whose process has ended, or was killed because it has given no sign of life for too long.

        Raises:
            LostPeerError: None of those that are not done was there for `deadlines.start_secs`.
        """
        expected = [each for each in self.workers if not each.is_done]
        there = [each for each in expected if each.worker.is_there()]
        if there or not expected:
            self._seen = self._clock()
        elif self._clock() - self._seen > self._start_secs:
            names = ", ".join(map(str, expected))
            raise LostPeerError(f"no worker was there for {self._start_secs:g} s, expected {names}")
        for each in there:
            code, cause = each.worker.exit_code(), ""
            if code is None and each.silence.is_too_long():
                # It reports nothing from here on, also if it was frozen and continues.
                each.worker.kill()
                code, cause = each.worker.exit_code(), f"no sign of life for {each.silence.limit_secs:g} s"
            if code is not None:
                yield End(each, cause or each.worker.cause_of_end() or "it ended", code, each.worker.failure())

    def close(self) -> None:
        """Nothing is left to do for the workers."""
        for each in self.workers:
            each.worker.close()
