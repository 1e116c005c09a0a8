"""Evaluations of the chief, one at a time, on a thread of their own: training continues meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from psfleet.errors import DeadlineError
from psfleet.report.last_evaluation import SKIPPED
from worker_service.chief.events import Events

logger = logging.getLogger("psfleet.chief")

Values = Mapping[str, np.ndarray]

MAX_WAITING_BYTES = 256 << 20
"""Memory for the weights of evaluations that wait for their turn."""
POLL_SECS = 0.5
LOST = "not evaluated by the chief before this one:"
MAX_BEHIND_SECS = 60.0
"""How long the evaluations that wait may take, if each takes as long as the one before; a run ends after them."""


class Evaluations:
    """Runs the program's evaluations, in the order of their steps. All methods are called by the thread that trains.

    An evaluation that is due while another one runs waits, with the weights of its step. If there is no memory for
    more, or if too many wait, it is skipped: each skipped step is logged, and an event names them.

    An evaluation has `deadlines.first_secs`, the time of a first batch: it reads a whole data set. A thread that does
    not return is abandoned, and ends with the process.

    Args of the constructor:
        evaluate: Evaluates named tensors at a global step and records the metrics; called on a thread of its own.
        deadline_secs: How long an evaluation may take.
        on_skipped: Called with each step that is skipped.
    """

    def __init__(
        self,
        evaluate: Callable[[int, Values], None],
        events: Events,
        deadline_secs: float,
        clock: Callable[[], float] = time.monotonic,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        on_skipped: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._evaluate = evaluate
        self._events = events
        self._deadline_secs = deadline_secs
        self._clock = clock
        self._max_waiting_bytes = max_waiting_bytes
        self._on_skipped = on_skipped
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], Values]]] = deque()
        self._running: tuple[int, float] | None = None
        self._error: BaseException | None = None
        self._bytes, self._secs = 0, 0.0
        self._skipped: list[int] = []

    def begin(self, step: int, values: Callable[[], Values], is_saved: bool = False) -> None:
        """Evaluates once those before are done, on another thread.

        Args:
            step: The global step of the values.
            values: Returns every named tensor; called before this method returns.
            is_saved: Whether `values` reads a checkpoint: it is then called when its turn comes, on the other thread.

        Raises: As `check`, for those before.
        """
        self.check()
        if not self._has_room():
            logger.warning("step %d is not evaluated: %d evaluations wait", step, len(self._waiting) + 1)
            self._skip(step)
            return
        self._report_skipped()
        load = values if is_saved else self._held(values())
        with self._changed:
            if self._running is not None:
                self._waiting.append((step, load))
                return
            self._running = step, self._clock()
        threading.Thread(target=self._run, args=(step, load), name="evaluation", daemon=True).start()

    def check(self) -> None:
        """Returns at once, also if an evaluation runs.

        Raises:
            ProgramError: An evaluation failed.
            DeadlineError: One runs for too long.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._running is not None and self._left_secs(self._running) <= 0:
                raise self._deadline(self._running)

    def finish(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Waits for all evaluations, or until `is_over`; whether all are done.

        Raises: As `check`.
        """
        self._report_skipped()
        with self._changed:
            while self._running is not None and self._error is None:
                if is_over():
                    return False
                left_secs = self._left_secs(self._running)
                if left_secs <= 0:
                    raise self._deadline(self._running)
                self._changed.wait(min(left_secs, POLL_SECS))
        self.check()
        return True

    def finish_running(self, is_over: Callable[[], bool]) -> bool:
        """Waits for the evaluation that runs, and skips those that wait; otherwise as `finish`."""
        with self._changed:
            waiting = [step for step, _ in self._waiting]
            self._waiting.clear()
        for step in waiting:
            self._skip(step)
        return self.finish(is_over)

    def record_lost(self, steps: list[int]) -> None:
        """Records steps that the chief before this one was to evaluate, and has not."""
        events, named = self._events.all(), 0
        # One that was itself killed may have recorded some of them already.
        for event in events:
            if event.generation:
                # Steps are trained, and evaluated, again.
                named = 0
            elif event.cause.startswith(LOST):
                named = int(event.cause.rpartition(" ")[2])
        further = [step for step in steps if step > named]
        if not further:
            return
        cause = f"{LOST} {_steps(further)}"
        if all(event.cause != cause for event in events):
            self._events.add("chief", 0, SKIPPED, cause)

    def _has_room(self) -> bool:
        with self._changed:
            if self._running is None:
                return True
            _, began = self._running
            waiting, secs = len(self._waiting) + 1, max(self._secs, self._clock() - began)
        return waiting * self._bytes <= self._max_waiting_bytes and waiting * secs <= MAX_BEHIND_SECS

    def _held(self, tensors: Values) -> Callable[[], Values]:
        """A function that returns the tensors."""
        self._bytes = sum(tensor.nbytes for tensor in tensors.values())
        return lambda: tensors

    def _run(self, step: int, load: Callable[[], Values]) -> None:
        """Evaluates, and then what waits."""
        while True:
            began = self._clock()
            try:
                self._evaluate(step, load())
            except BaseException as error:
                self._error = error
            with self._changed:
                self._secs = self._clock() - began
                if not self._waiting or self._error is not None:
                    self._running = None
                    self._changed.notify_all()
                    return
                step, load = self._waiting.popleft()
                self._running = step, self._clock()

    def _skip(self, step: int) -> None:
        self._skipped.append(step)
        self._on_skipped(step)

    def _report_skipped(self) -> None:
        if self._skipped:
            self._events.add("chief", 0, SKIPPED, f"not evaluated in time: {_steps(self._skipped)}")
            self._skipped = []

    def _left_secs(self, running: tuple[int, float]) -> float:
        _, began = running
        return began + self._deadline_secs - self._clock()

    def _deadline(self, running: tuple[int, float]) -> DeadlineError:
        step, _ = running
        return DeadlineError(f"the evaluation at step {step}", self._deadline_secs)


def _steps(steps: list[int]) -> str:
    if len(steps) <= 3:
        return "steps " + ", ".join(map(str, steps)) if len(steps) > 1 else f"step {steps[0]}"
    return f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
