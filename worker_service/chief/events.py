"""Writes down what happens to the fleet, in the log and in `events.jsonl`."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from pathlib import Path

from psfleet.job import Job
from psfleet.report import Event, EventLog
from worker_service.fleet import States

logger = logging.getLogger("psfleet.chief")


class Events:
    """The events of a run; its methods may be called from any thread."""

    def __init__(self, out: Path, job: Job) -> None:
        self._log = EventLog(out / EventLog.FILE_NAME)
        self._job = job
        self._lock = threading.Lock()
        # A chief that was started again has not seen what the one before it wrote down.
        noted = Counter((event.role, event.index) for event in self._log.read() if event.kind == "restarted")
        self._joins = {index: 1 + noted[self.role(index), index] for index in range(job.fleet.slots)}

    def add(self, role: str, index: int, kind: str, cause: str, steps_lost: int = 0) -> None:
        """Notes one event."""
        logger.warning(
            "%s %d %s: %s%s", role, index, kind, cause, f"; {steps_lost} steps lost" if steps_lost else "",
            extra={"event": kind, "steps_lost": steps_lost},
        )  # fmt: skip
        with self._lock:
            self._log.append(
                Event(time=time.time(), role=role, index=index, kind=kind, cause=cause, steps_lost=steps_lost)
            )

    def watch(self, states: States) -> None:
        """Notes each worker that ps 0 has seen join again."""
        if states[0] is None:
            return
        for worker in states[0].workers:
            seen = self._joins[worker.index]
            self._joins[worker.index] = max(seen, worker.joins)
            if worker.joins > seen:
                self.add(self.role(worker.index), worker.index, "restarted", worker.cause or "it joined again")

    def role(self, index: int) -> str:
        """What a worker of an index is called."""
        if index == 0:
            return "chief"
        return "worker" if index < self._job.fleet.workers else "spare"

    def all(self) -> list[Event]:
        """Everything noted so far, by earlier processes of this run too."""
        return self._log.read()
