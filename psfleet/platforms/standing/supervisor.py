"""`python -m psfleet.platforms.standing.supervisor FOLDER`: keeps the processes of a standing fleet running.

There are two supervisors: one holds the folder's lock and works, the other waits for the lock. When the first one dies,
the kernel releases the lock; the second one adopts the processes, and starts a supervisor that waits for it in turn.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from psfleet.addresses import Address
from psfleet.errors import DeadlineError, PsfleetError
from psfleet.files import replace_file
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.platforms.standing.fleet_folder import FleetFolder, renew_certificates
from psfleet.platforms.standing.state import RUNNING, FleetState, TaskState
from psfleet.platforms.standing.task import StandingTask
from psfleet.polling import wait_until
from psfleet.processes.identity import identity, started_with
from psfleet.processes.ports import free_addresses, reserve
from psfleet.service import process_environment, settings
from psfleet.service.logs import log_service

logger = logging.getLogger("psfleet.launch")

MODULE = "psfleet.platforms.standing.supervisor"
LOOK_SECS = 0.1
RENEW_SECS = 3600.0
"""Interval in which certificates are renewed if they are due, which they are after 20 days."""


def start_supervisor(folder: FleetFolder) -> subprocess.Popen[bytes]:
    """Starts a supervisor that outlives this process; it works once no other one does."""
    # Each ps is to survive the death of any other process, also of a fork server.
    fork_server = settings.fork_server() or settings.NO_FORK_SERVER
    with folder.supervisor_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(folder.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd="/",
            env=process_environment.for_child({settings.FORK_SERVER: fork_server}), start_new_session=True,
        )  # fmt: skip


class Supervisor:
    """Starts and restarts the processes of one fleet until it is asked to stop."""

    def __init__(self, folder: FleetFolder, file: FleetFile) -> None:
        self._folder = folder
        self._file = file
        before = folder.state()
        if before is not None:
            _find_unrecorded(before)
        if before is not None and any(task.is_alive() for task in before.tasks):
            logger.info("fleet %s: adopting its processes", file.name)
            self.state = before
            reserve([Address.parse(task.address) for task in before.tasks])
        else:
            self.state = new_state(file)
        self.state.supervisor = os.getpid()
        environment = self._environment()
        self.tasks = [
            StandingTask(
                task,
                {
                    **environment,
                    settings.INDEX: str(task.index),
                    settings.ADDRESS: task.address,
                    settings.TLS: str(folder.credentials(task.role) or ""),
                },
                folder.log(task.role, task.index),
            )
            for task in self.state.tasks
        ]
        self._standby: subprocess.Popen[bytes] | None = None
        self._recorded = ""
        self._problem = ""
        self._renewed = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Supervises until `stop` is set, or the fleet is not wanted any more; then ends all processes."""
        self._record()
        while not stop.wait(LOOK_SECS) and self._folder.wanted.exists():
            self.look()
        self.end()

    def look(self) -> None:
        """Starts what is due, and records what has changed."""
        for task in self.tasks:
            if task.check(time.monotonic()):
                # At once: the successor of a supervisor that is killed must know each process.
                self._record()
        self._record()
        self._renew(time.monotonic())
        if self._standby is None or self._standby.poll() is not None:
            try:
                self._standby = start_supervisor(self._folder)
            except OSError as error:
                self._warn(f"no second supervisor can be started: {error}")

    def end(self) -> None:
        """Asks all processes to end, and kills those that do not."""
        for task in self.tasks:
            task.signal(signal.SIGTERM)
        secs = self._file.deadlines.stop_secs
        try:
            wait_until(lambda: all(task.has_ended() for task in self.tasks), secs, "all processes to end")
        except DeadlineError as error:
            logger.warning("%s: killing them", error)
            for task in self.tasks:
                task.signal(signal.SIGKILL)

    def _environment(self) -> dict[str, str]:
        """Variables of all processes: theirs are not those of a run or pod that this process may belong to."""
        unset = (
            settings.JOB, settings.RUN, settings.PS, settings.RECORDS, settings.START, settings.THREADS,
            settings.ON_SIGTERM, settings.LOG, settings.TF_CONFIG,
        )  # fmt: skip
        own = {settings.FLEET: self.state.access.model_dump_json(), settings.METRICS_PORT: "0"}
        return {**dict.fromkeys(unset, ""), **own}

    def _renew(self, now: float) -> None:
        """Renews certificates that are due; processes load new ones within a second."""
        if not self._file.tls or now - self._renewed < RENEW_SECS:
            return
        self._renewed = now
        try:
            renew_certificates(self._folder)
        except PsfleetError as error:
            self._warn(str(error))

    def _record(self) -> None:
        """Writes the state if it has changed; at the next look if that fails, for example because the disk is full."""
        text = self.state.model_dump_json(indent=2)
        if text == self._recorded:
            return
        try:
            replace_file(self._folder.state_file, text)
            self._recorded = text
        except OSError as error:
            self._warn(f"the state of the fleet cannot be written: {error}")

    def _warn(self, problem: str) -> None:
        """Logs a problem that lasts once."""
        if problem != self._problem:
            logger.warning("%s; trying again", problem)
            self._problem = problem


def _find_unrecorded(state: FleetState) -> None:
    """Records processes that a supervisor had started, and was killed before it recorded them.

    Otherwise their successors would find their ports taken for ever.
    """
    access = state.access.model_dump_json()
    for task in state.tasks:
        if task.is_alive():
            continue
        pid = started_with({settings.FLEET: access, settings.ADDRESS: task.address, settings.INDEX: str(task.index)})
        if pid:
            logger.info("%s runs as process %d, which was not recorded", task.name, pid)
            task.pid, task.identity, task.state, task.started = pid, identity(pid), RUNNING, time.time()


def new_state(file: FleetFile) -> FleetState:
    """A new start of a fleet, at free ports."""
    size = file.fleet
    addresses = [at.data for at in free_addresses(size.ps + size.workers)]
    ps, workers = addresses[: size.ps], addresses[size.ps :]
    access = FleetAccess.of_new_start(file, ps, workers)
    tasks = [TaskState(role="ps", index=index, address=at) for index, at in enumerate(ps)]
    tasks += [TaskState(role="worker", index=index, address=at) for index, at in enumerate(workers)]
    return FleetState(access=access, tasks=tasks)


def main() -> None:
    """Waits until no other supervisor works, and then supervises."""
    log_service(False, role="supervisor")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    folder = FleetFolder(Path(sys.argv[1]))
    with folder.supervising() as is_wanted:
        file = folder.file() if is_wanted else None
        if file is not None and not stop.is_set():
            Supervisor(folder, file).run(stop)


if __name__ == "__main__":
    main()
