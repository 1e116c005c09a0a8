"""Evaluations of the chief, one at a time, on a thread of their own: training continues meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from psfleet.errors import DeadlineError
from worker_service.chief.events import Events

logger = logging.getLogger("psfleet.chief")

Values = Mapping[str, np.ndarray]


@dataclass
class _Running:
    """An evaluation that has begun.

    Attributes:
        skipped: The steps whose evaluation was due meanwhile.
    """

    step: int
    began: float
    result: Future[None] = field(default_factory=Future)
    skipped: list[int] = field(default_factory=list)


class Evaluations:
    """Runs the program's evaluation. All methods are called by one thread, the one that trains.

    An evaluation that is due while another one runs is skipped: the next one is of newer weights anyway, and a queue of
    weights would grow. Each skipped step is logged, and an event names them.

    An evaluation has `deadlines.first_secs`, the time of a first batch: it reads a whole data set. A thread that does
    not return is abandoned, and ends with the process.

    Args of the constructor:
        evaluate: Evaluates named tensors at a global step and records the metrics; called on the thread.
        deadline_secs: How long an evaluation may take.
    """

    def __init__(
        self,
        evaluate: Callable[[int, Values], None],
        events: Events,
        deadline_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._evaluate = evaluate
        self._events = events
        self._deadline_secs = deadline_secs
        self._clock = clock
        self._running: _Running | None = None

    def begin(self, step: int, values: Callable[[], Values]) -> None:
        """Starts an evaluation, unless one runs.

        Args:
            step: The global step of the values.
            values: Returns every named tensor; called before this method returns.

        Raises: As `check`, for the evaluation before.
        """
        self.check()
        if self._running is not None:
            self._running.skipped.append(step)
            logger.warning("step %d is not evaluated: that of step %d still runs", step, self._running.step)
            return
        tensors = values()
        running = self._running = _Running(step, self._clock())
        threading.Thread(target=self._run, args=(running, tensors), name="evaluation", daemon=True).start()

    def check(self) -> None:
        """Returns at once, also if an evaluation runs.

        Raises:
            ProgramError: The evaluation failed.
            DeadlineError: It runs for too long.
        """
        running = self._running
        if running is None:
            return
        if running.result.done():
            self._settle(running)
        elif self._clock() - running.began >= self._deadline_secs:
            raise self._deadline(running)

    def finish(self) -> None:
        """Waits for the evaluation that runs, if one does.

        Raises: As `check`.
        """
        running = self._running
        if running is None:
            return
        left_secs = running.began + self._deadline_secs - self._clock()
        try:
            running.result.exception(max(0.0, left_secs))
        except TimeoutError:
            raise self._deadline(running) from None
        self._settle(running)

    def _run(self, running: _Running, tensors: Values) -> None:
        try:
            self._evaluate(running.step, tensors)
        except BaseException as error:
            running.result.set_exception(error)
        else:
            running.result.set_result(None)

    def _settle(self, running: _Running) -> None:
        self._running = None
        if running.skipped:
            secs = self._clock() - running.began
            cause = f"that of step {running.step} took {secs:.1f} s; not evaluated: {_steps(running.skipped)}"
            self._events.add("chief", 0, "evaluation_skipped", cause)
        running.result.result()

    def _deadline(self, running: _Running) -> DeadlineError:
        return DeadlineError(f"the evaluation at step {running.step}", self._deadline_secs)


def _steps(steps: list[int]) -> str:
    if len(steps) <= 3:
        return "steps " + ", ".join(map(str, steps)) if len(steps) > 1 else f"step {steps[0]}"
    return f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
