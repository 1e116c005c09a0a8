"""The channel to a run in containers: a relay in the chief's container makes each call; no port is opened."""

from __future__ import annotations

import logging
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

from psfleet.control.relay_client import MODULE, RelayClient
from psfleet.errors import DONE, STOPPED, LostPeerError, NoAnswerError, UsageError
from psfleet.handle.channel import AGAIN_SECS, Call, End, RunChannel
from psfleet.job.job import Job
from psfleet.launch.followers import following
from psfleet.launch.platform import Member, Platform, chief_of, may_restart
from psfleet.launch.results import fetch
from psfleet.launch.up import remove
from psfleet.launch.watcher import FleetWatcher, TakenDownError
from psfleet.manifests import container
from psfleet.polling import wait_until
from psfleet.report.attempts import earlier_report
from psfleet.report.schema import Report
from psfleet.run_folder import Owner, owner
from psfleet.service.logs import parse_line

logger = logging.getLogger("psfleet.handle")

TAIL_LINES = 500
"""End of the chief's log in which its newest step is looked for."""
STEP_EVENTS = ("fleet", "held", "progress", "verified")
"""Kinds of the chief's log entries that have the step that the fleet is at."""
PAUSED = "paused"
"""State of a container that `docker pause` has frozen."""


class ContainerChannel(RunChannel):
    """A `RunChannel` to a fleet in containers, by its job's name.

    While it waits, for an answer or for the end of the run, it does what `psfleet up` does meanwhile: it starts members
    again whose restart their platform leaves to psfleet, and ends a run that has lost a member for good.

    Args of the constructor:
        platform: Where the fleet runs.
        on: The platform's name.
        name: Of the job.
        folder: To which the results are copied.
    """

    def __init__(self, platform: Platform, on: str, name: str, folder: Path) -> None:
        super().__init__(folder, f"{name} on {on}")
        self._platform = platform
        self._on = on
        self._name = name
        self._watcher: FleetWatcher | None = None
        self._next_look = 0.0
        # Held while a thread looks: `Run.train` and the like make their calls on a thread of their own.
        self._looking = threading.Lock()
        # Whether this handle has stopped the run.
        self._is_stopped = False
        # The end of the run, if `stop` has removed the fleet.
        self._stopped: End | None = None
        # Of the fleet that was seen last: when its chief was created, and its job.
        self._known: tuple[float, Job] | None = None

    def is_live(self) -> bool:
        """See `RunChannel`."""
        chief = self._chief()
        if chief is None or self._is_over(chief):
            return False
        # From now on there is a watcher, which tolerates a platform that does not answer for a while.
        self._watch(chief)
        return True

    def has_ended(self) -> bool:
        """See `RunChannel`. While one thread looks, the others go on waiting."""
        if not self._looking.acquire(blocking=False):
            return False
        try:
            return self._look_for_end()
        finally:
            self._looking.release()

    def _look_for_end(self) -> bool:
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + self._platform.look_secs
        if self._is_stopped and not self.is_live():
            # The watcher would wait for `settle_secs`, as for a chief that its engine has stopped and starts again.
            return True
        try:
            watcher = self._watcher
            if watcher is None:
                chief = self._chief()
                if chief is None:
                    return True
                watcher = self._watch(chief)
            if not watcher.is_over():
                return False
            watcher.finish()
        except TakenDownError:
            pass
        self._watcher, self._next_look = None, 0.0
        return True

    def end(self) -> End | None:
        """See `RunChannel`. The report of a fleet that is still there is not in the folder yet."""
        chief = self._chief()
        if chief is None or chief.exit_code is None:
            report = self._own_report()
            return self._stopped if report is None else End(report.status, report.final_step)
        status = "done" if chief.exit_code == DONE else "stopped" if chief.exit_code in STOPPED else "failed"
        return End(status, self._step_in_log(chief) or 0)

    def logged_step(self) -> int | None:
        """See `RunChannel`."""
        chief = self._chief()
        return None if chief is None else self._step_in_log(chief)

    def stop(self) -> None:
        """See `RunChannel`. A chief that is being started, or started again, is awaited.

        Where the platform would start it again after its end, this waits for that, and removes the fleet.
        """
        chief = self._chief()
        limit = 0.0 if chief is None else self._job(chief).deadlines.start_secs

        def asked() -> bool:
            self._require_live()
            try:
                running = self._running()
                if not self._platform.restarts_stopped:
                    self._platform.ask_to_stop(running)
            except LostPeerError as error:
                logger.debug("%s", error)
                return False
            return True

        wait_until(asked, limit, f"the chief of {self.where} to run", poll_secs=AGAIN_SECS)
        if self._platform.restarts_stopped:
            step = self.logged_step() or 0
            remove(self._platform, self._name)
            self._stopped = End("stopped", step)
        self._is_stopped = True

    def report(self) -> Report:
        """See `RunChannel`. Copies the results as `psfleet up` does at the end, and removes the fleet."""
        job = None if self._known is None else self._known[1]
        with following(self._platform, self._name) as follower:
            report = fetch(self._platform, self._name, job, self.folder, self._on).report
            if not self.is_live() and follower.is_last():
                remove(self._platform, self._name)
        if report is None:
            raise UsageError(f"{self.where}: no attempt of the run has left a report")
        return report

    def _attempt(self, call: Call) -> Any:
        """See `RunChannel`."""
        chief = self._running()
        call.bind(chief.created)
        job = self._job(chief)
        # The id that the environment of the run's containers has.
        call.caller.run = chief.run or self._name
        tls = [container.TLS] if job.tls else []
        words = ["python", "-m", MODULE, str(container.CONTROL_PORT), *tls]
        client = RelayClient(
            lambda: self._platform.running(chief, words), f"the chief (worker 0) in {self._platform.noun} {chief.name}"
        )
        return client.call(call.method, call.made, lambda: self._check(call), call.timeout_secs, call.consume)

    def _watch(self, chief: Member) -> FleetWatcher:
        """The watcher of the fleet of a chief."""
        job = self._job(chief)
        watcher = self._watcher or FleetWatcher(self._platform, job, None)
        self._watcher = watcher
        return watcher

    def _check(self, call: Call) -> None:
        call.goes_on()
        if self.has_ended():
            raise LostPeerError(f"{self.where} has ended")

    def _chief(self) -> Member | None:
        return chief_of(self._platform.members(self._name))

    def _running(self) -> Member:
        """The chief; raises `LostPeerError` if it does not run, and `NoAnswerError` if it is frozen."""
        chief = self._chief()
        if chief is not None and chief.state == PAUSED:
            raise NoAnswerError(
                f"the chief (worker 0) does not answer: {self._platform.noun} {chief.name} is paused", 0.0
            )
        if chief is None or chief.state != "running":
            raise LostPeerError(f"{self.where}: the chief is {'missing' if chief is None else chief.state}")
        return chief

    def _job(self, chief: Member) -> Job:
        """The job that the fleet of a chief trains."""
        if self._known is None or self._known[0] != chief.created:
            self._known, self._watcher = (chief.created, self._platform.job(self._name)), None
        return self._known[1]

    def _is_over(self, chief: Member) -> bool:
        return chief.is_over and not may_restart(chief, self._job(chief))

    def _step_in_log(self, chief: Member) -> int | None:
        lines = islice(self._platform.log(chief, tail=TAIL_LINES), TAIL_LINES)
        entries = [entry for line in lines if (entry := parse_line(line)) is not None]
        steps = [entry["step"] for entry in entries if entry.get("event") in STEP_EVENTS and "step" in entry]
        return int(steps[-1]) if steps else None

    def _own_report(self) -> Report | None:
        """The report in the folder, if that is the run's."""
        return earlier_report(self.folder) if owner(self.folder) == Owner(self._name, self._on) else None
