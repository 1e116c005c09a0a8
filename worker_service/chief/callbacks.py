"""Calls the job's callbacks on a thread beside training."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from psfleet.callbacks import Callback, RunInfo
from psfleet.callbacks.folders import state_folders
from psfleet.checkpoint.location import Folder
from psfleet.job.callback import CallbackSpec
from psfleet.report.schema import Report
from worker_service.chief.events import Events

logger = logging.getLogger("psfleet.chief")

MAX_WAITING = 100
"""While so many calls wait, steps are dropped."""
END_SECS = 5.0
"""How long the end of the run may take all callbacks together; a stop must be quick."""

Call = Callable[[int, Callback], object]
"""Calls a method of a callback, whose position in the job it gets, too."""


class Callbacks:
    """The callbacks of a run; its methods return at once, and may be called from any thread.

    An exception of a callback is an event, once for each of its methods; the calls after it are made. Each gets
    metrics of its own: what it does with them changes neither those of the next one nor the recorded ones.

    Args of the constructor:
        run: As of its step 0; may be None if there are no callbacks.
        specs: Of the job, in the same order; by them each callback finds its folder again.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        events: Events,
        run: RunInfo | None = None,
        specs: Sequence[CallbackSpec] = (),
    ) -> None:
        self._callbacks = callbacks
        self._events = events
        self._run_info = run
        self._specs = specs
        self._waiting: deque[tuple[str, Call]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._num_dropped = 0
        self._failed: set[tuple[int, str]] = set()
        self._next_steps = [0] * len(callbacks)
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        if callbacks:
            self._thread.start()

    def start(self, step: int) -> None:
        """Training starts from a step, or continues from it after a loss: then later steps are made again."""
        if not self._begin(step):
            again = (self._next_multiple(index, step) for index in range(len(self._callbacks)))
            self._next_steps = [min(pair) for pair in zip(self._next_steps, again, strict=True)]

    def _begin(self, step: int) -> bool:
        """Calls `on_start` if nothing has; returns whether it was called.

        A checkpoint can be complete before this chief trains, and a run that is done is only evaluated.
        """
        with self._changed:
            run, self._run_info = self._run_info, None
            if run is not None:
                self._start(run, step)
        return run is not None

    def _next_multiple(self, index: int, step: int) -> int:
        """The next step after `step` for which a callback is called."""
        every = max(1, self._callbacks[index].every_steps)
        return (step // every + 1) * every

    def _start(self, run: RunInfo, step: int) -> None:
        self._next_steps = [step + 1] * len(self._callbacks)

        def call(index: int, callback: Callback) -> None:
            state = state_folders(run.state, self._specs)[index]
            callback.on_start(replace(run, state=state, step=step))

        self._add("on_start", call)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step was made; most callbacks want only some of them."""
        due = {index for index, at in enumerate(self._next_steps) if step >= at}
        if not due:
            return
        for index in due:
            self._next_steps[index] = self._next_multiple(index, step)

        def call(index: int, callback: Callback) -> None:
            if index in due:
                callback.on_step(step, dict(metrics))

        self._add("on_step", call)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """The weights of a step were evaluated."""
        self._begin(step)
        self._add("on_evaluate", lambda _, each: each.on_evaluate(step, dict(metrics)))

    def saved(self, step: int, folder: Folder) -> None:
        """A checkpoint is complete."""
        self._begin(step)
        path = folder if isinstance(folder, Path) else folder.url
        self._add("on_checkpoint", lambda _, each: each.on_checkpoint(step, path))

    def end(self, report: Report) -> None:
        """The report is written; waits for the calls so far, at most `END_SECS`."""
        if not self._callbacks:
            return
        self._begin(report.final_step)
        self._add("on_end", lambda _, each: each.on_end(report))
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(END_SECS)
        if self._thread.is_alive():
            logger.warning("the callbacks did not return in %g s, and are abandoned", END_SECS)

    def _add(self, method: str, call: Call) -> None:
        with self._changed:
            if not self._callbacks or self._is_closed:
                return
            if method == "on_step" and len(self._waiting) >= MAX_WAITING:
                self._num_dropped += 1
                is_first = self._num_dropped == 1
            else:
                is_first = False
                self._waiting.append((method, call))
                self._changed.notify_all()
        if is_first:
            self._events.add("chief", 0, "callback_failed", "callbacks are slower than training: steps are dropped")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                method, call = self._waiting.popleft()
            for index, callback in enumerate(self._callbacks):
                self._call(index, callback, method, call)

    def _call(self, index: int, callback: Callback, method: str, call: Call) -> None:
        try:
            call(index, callback)
        except (Exception, SystemExit) as error:
            if (index, method) in self._failed:
                return
            self._failed.add((index, method))
            cause = f"{type(callback).__name__}.{method}() raised {type(error).__name__}: {error}; training continues"
            logger.warning("%s", cause, exc_info=True)
            self._events.add("chief", 0, "callback_failed", cause)
