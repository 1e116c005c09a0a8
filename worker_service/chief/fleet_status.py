"""Logs the table of the fleet's processes that `psfleet status` shows on every platform."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from psfleet.control import control_pb2 as pb
from psfleet.job.job import Job
from psfleet.plurals import counted
from worker_service.chief.events import Events
from worker_service.fleet_state import States, is_held

logger = logging.getLogger("psfleet.chief")

EVERY_SECS = 2.0
"""Between two tables while no process starts or ends."""
RATE_SECS = 1.0
"""Shortest interval over which a rate is computed."""

Row = dict[str, Any]


class FleetStatusLogger:
    """Makes the table from the states of the ps, and logs it with `event: fleet`.

    A row has `index`, `step`, `rate` (a ps: updates per second; a worker: examples per second), `alive`, `restarts` and
    `last_event`; a worker's also `role` and `address`.
    """

    def __init__(self, job: Job, events: Events, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._events = events
        self._clock = clock
        self._logged_at = float("-inf")
        self._conditions: list[tuple[Any, ...]] = []
        self._marks: dict[tuple[str, int], tuple[float, int, float]] = {}
        self._workers: Sequence[pb.WorkerState] = ()

    def update(self, states: States) -> None:
        """Logs the table every `EVERY_SECS`, and at once if a process started, ended or was restarted."""
        now = self._clock()
        ps, workers = self._ps_rows(states, now), self._worker_rows(states, now)
        if workers and is_held(states):
            workers[0]["last_event"] = f"held at step {min(state.step for state in states if state is not None)}"
        conditions = [(row["alive"], row["restarts"], row["last_event"]) for row in [*ps, *workers]]
        if now - self._logged_at < EVERY_SECS and conditions == self._conditions:
            return
        self._logged_at, self._conditions = now, conditions
        step = min([state.step for state in states if state is not None], default=0)
        num_ps, alive = sum(row["alive"] for row in ps), counted(sum(row["alive"] for row in workers), "worker")
        extra = {"event": "fleet", "step": step, "target": self._job.train.steps, "ps": ps, "workers": workers}
        logger.info("%d ps and %s at step %d", num_ps, alive, step, extra=extra)

    def _ps_rows(self, states: States, now: float) -> list[Row]:
        return [
            {
                "index": index,
                "step": state.step if state is not None else None,
                "rate": self._rate(("ps", index), state.step, now) if state is not None else None,
                "alive": state is not None,
                **self._history("ps", index),
            }
            for index, state in enumerate(states)
        ]

    def _worker_rows(self, states: States, now: float) -> list[Row]:
        """As ps 0 describes them; while it cannot be reached, its last description."""
        if states[0] is not None:
            self._workers = states[0].workers
        batch_size = self._job.push_examples
        rows = []
        for worker in self._workers:
            rate = self._rate(("worker", worker.index), worker.pushed, now)
            rows.append(
                {
                    "index": worker.index,
                    "role": self._events.role(worker.index),
                    "address": worker.address,
                    "step": worker.step,
                    "rate": None if rate is None else round(rate * batch_size, 1),
                    "alive": worker.is_alive,
                    **self._history(self._events.role(worker.index), worker.index),
                }
            )
        return rows

    def _rate(self, who: tuple[str, int], count: int, now: float) -> float | None:
        """Growth of a count per second; None before `RATE_SECS` have passed."""
        since, before, rate = self._marks.setdefault(who, (now, count, -1.0))
        if now - since >= RATE_SECS:
            rate = max(0, count - before) / (now - since)
            self._marks[who] = (now, count, rate)
        return None if rate < 0 else round(rate, 2)

    def _history(self, role: str, index: int) -> Row:
        """The events of one process."""
        last = self._events.last.get((role, index))
        return {
            "restarts": self._events.restarts[role, index],
            "last_event": f"{last.kind}: {last.cause}" if last is not None else "",
        }
