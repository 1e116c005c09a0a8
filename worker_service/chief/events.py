"""Records the fleet's events in the log and in `events.jsonl`."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from pathlib import Path

from psfleet.control import control_pb2 as pb
from psfleet.job.job import Job
from psfleet.report.schema import Event, EventLog
from worker_service.chief.disk import Disk
from worker_service.fleet_state import States

logger = logging.getLogger("psfleet.chief")


class Events:
    """The events of an attempt of a run; its methods may be called from any thread.

    Args of the constructor:
        first_event: Where the attempt's events begin in `events.jsonl`, in bytes; earlier attempts wrote those before.
        disk: Of the chief.

    Attributes:
        restarts: By role and index, how often a process was restarted.
        last: By role and index, the newest event of a process.
        steps_lost: Applied steps that were lost with ps and trained again.
        disk: Of the chief.
    """

    def __init__(self, out: Path, job: Job, first_event: int = 0, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self._log = EventLog(out / EventLog.FILE_NAME)
        self._job = job
        self._lock = threading.RLock()
        # A restarted chief counts what the chief process before it recorded.
        self.restarts: Counter[tuple[str, int]] = Counter()
        self.last: dict[tuple[str, int], Event] = {}
        self.steps_lost = 0
        with self.disk.reading(self._log.path):
            self._all = self._log.readable(first_event)
        self._unsaved: list[Event] = []
        for event in self._all:
            self._count(event)
        self._joins = {index: 1 + self.restarts[self.role(index), index] for index in range(job.fleet.worker_limit)}
        self._processes: dict[int, str] = {}
        # With `fleet.colocate`: causes of restarts whose shards are not restored yet, and those that recovery recorded
        # before the worker joined, by index.
        self._deferred: dict[int, str] = {}
        self._recorded: set[int] = set()

    def add(self, role: str, index: int, kind: str, cause: str, steps_lost: int = 0, generation: int = 0) -> None:
        """Logs and stores one event.

        Args:
            role: Of the process: chief, worker, spare, ps or loader.
            index: Of the process.
            kind: One of those in `psfleet.report.schema.Event`.
            cause: Why it happened.
            steps_lost: Applied steps that it cost.
            generation: The one that starts because of the event; 0: none.
        """
        logger.warning(
            "%s %d %s: %s%s", role, index, kind, cause, f"; {steps_lost} steps lost" if steps_lost else "",
            extra={"event": kind, "steps_lost": steps_lost},
        )  # fmt: skip
        event = Event(
            time=time.time(), role=role, index=index, kind=kind, cause=cause, steps_lost=steps_lost,
            generation=generation,
        )  # fmt: skip
        with self._lock:
            self._all.append(event)
            self._unsaved.append(event)
            self._count(event)
            self._save()

    def record_restarts(self, states: States) -> None:
        """Adds an event for each worker process that has joined ps 0 in place of another.

        That of a worker that is a ps, too, waits until recovery has recorded the loss of its shard, if it does.
        """
        if states[0] is None:
            return
        with self._lock:
            for worker in states[0].workers:
                # Others are those of a job with a larger fleet that the ps trained before.
                if (seen := self._joins.get(worker.index)) is None:
                    continue
                # A restarted ps 0 may have lost count, and a restarted chief has not seen the process before.
                is_new = self._processes.get(worker.index, worker.process) != worker.process
                self._joins[worker.index], self._processes[worker.index] = max(seen, worker.joins), worker.process
                if worker.joins > seen or is_new:
                    self._record_join(worker.index, worker.cause or "joined again")
            for index in [index for index in self._deferred if not self._lacks_shard(states[index])]:
                self._add_restart(index, self._deferred.pop(index))

    def record_loss(self, index: int, cause: str, steps_lost: int, generation: int) -> None:
        """Adds an event for a ps that has lost its shard; with `fleet.colocate` for the worker that it is, too.

        Args:
            cause, steps_lost, generation: As for `add`.
        """
        if not self._job.fleet.colocate:
            self.add("ps", index, "restarted", cause, steps_lost, generation)
            return
        with self._lock:
            if self._deferred.pop(index, None) is None:
                self._recorded.add(index)
            self.add(self.role(index), index, "restarted", cause, steps_lost, generation)

    def _record_join(self, index: int, cause: str) -> None:
        if index in self._recorded:
            self._recorded.remove(index)
            return
        if index in self._deferred:
            # That process has ended, too, before its shard was restored.
            self._add_restart(index, self._deferred.pop(index))
        if self._job.fleet.colocate:
            self._deferred[index] = cause
        else:
            self._add_restart(index, cause)

    def _add_restart(self, index: int, cause: str) -> None:
        self.add(self.role(index), index, "restarted", cause)

    @staticmethod
    def _lacks_shard(state: pb.ShardState | None) -> bool:
        return state is None or state.phase == pb.EMPTY

    def role(self, index: int) -> str:
        """The role of the worker of an index: chief, worker or spare."""
        return self._job.fleet.role(index)

    def all(self) -> list[Event]:
        """All events so far, those of earlier chief processes of this attempt included."""
        with self._lock:
            self._save()
            return list(self._all)

    def _save(self) -> None:
        """Appends what is not in the file yet; what a full disk refuses is kept for the report and the next attempt."""
        if not self._unsaved:
            return
        try:
            # Every other thread that has an event waits meanwhile.
            with self.disk.writing(self._log.path.name):
                while self._unsaved:
                    self._log.append(self._unsaved[0])
                    del self._unsaved[0]
        except OSError as error:
            logger.warning("%d events wait for %s: %s", len(self._unsaved), self._log.path, error.strerror or error)

    def _count(self, event: Event) -> None:
        if event.kind == "restarted":
            self.restarts[event.role, event.index] += 1
        self.last[event.role, event.index] = event
        self.steps_lost += event.steps_lost
