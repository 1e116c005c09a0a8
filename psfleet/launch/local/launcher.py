"""Runs a fleet as processes on this machine and watches it to its end."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.addresses import Address
from psfleet.errors import PERMANENT_CODES, UsageError
from psfleet.job.job import Job, load_job, parse_job
from psfleet.launch.follow import Follower
from psfleet.launch.local.child import Task
from psfleet.launch.local.ports import free_addresses
from psfleet.launch.local.threads import share_cores
from psfleet.report import html
from psfleet.report.progress import starting_entry
from psfleet.report.schema import EventLog, Report
from psfleet.run_folder import RunFolder, claimed
from psfleet.service import settings
from psfleet.service.cpu import num_cores

POLL_SECS = 0.1
LEAVE_SECS = 10.0
"""How long every process may take to end once the chief has, or once one has failed for good."""
RESTART_SECS = 0.5
"""Pause before a process is started again."""

Listener = Callable[[Mapping[str, Any]], None]


def train(
    job: Job | Path | str | Mapping[str, Any],
    *,
    out: Path | str | None = None,
    fresh: bool = False,
    overrides: tuple[str, ...] = (),
    program_folder: Path | str | None = None,
    listener: Listener | None = None,
) -> Report:
    """Trains a job on processes of this machine, and waits for its end.

    Args:
        job: A job, its content as a mapping, or the path of a job file.
        out: The run's folder; `runs/<name>` by default. If it has checkpoints, training goes on from the newest.
        fresh: Whether what an earlier run left in `out` is deleted first.
        overrides: `key=value` texts that change the job file.
        program_folder: Searched first for the program's module; the job file's folder by default.
        listener: Called with each log entry of the chief: its `event` is progress, evaluation, checkpoint, …

    Returns:
        The report, of a failed run too: see its `status`, `exit_code` and `error`.

    Raises:
        UsageError: The job file or the folder cannot be used, or TensorFlow is not installed.
        BadJobError: The job is not valid.
    """
    folder = Path(program_folder) if program_folder is not None else Path()
    if isinstance(job, str | Path):
        path = Path(job)
        job = load_job(path, overrides)
        folder = path.parent if program_folder is None else folder
    elif overrides:
        raise UsageError("overrides go with the path of a job file")
    elif not isinstance(job, Job):
        job = parse_job(job)
    job = share_cores(job, num_cores(), job.fleet.replicas)
    settings.require_tensorflow()
    with claimed(Path(out) if out is not None else Path("runs") / job.name, job, fresh) as run_folder:
        return _Launch(job, run_folder, folder.resolve(), listener or _ignore).run()


class _Launch:
    """One run from its first process to its last."""

    def __init__(self, job: Job, folder: RunFolder, program_folder: Path, listener: Listener) -> None:
        self._job = job
        self._folder = folder
        self._run = f"{job.name}-{secrets.token_hex(4)}"
        self._tasks = self._plan(program_folder)
        self._chief = next(task for task in self._tasks if task.role == "worker")
        self._listener = listener
        self._follower = Follower(self._chief.log, listener)
        self._signals: list[int] = []
        self._failed: Task | None = None
        self._restart_at: dict[str, float] = {}
        self._deadline: float | None = None
        self._is_chief_gone = False

    def run(self) -> Report:
        """Starts everything, waits, and leaves nothing behind."""
        with _signals_into(self._signals):
            try:
                self._listener(starting_entry(self._job))
                for task in self._tasks:
                    task.start()
                while not self._is_over():
                    time.sleep(POLL_SECS)
            finally:
                for task in self._tasks:
                    task.kill()
        self._follower.read()
        self._tell_traceback()
        return self._report()

    def _tell_traceback(self) -> None:
        """Passes on the training program's own traceback, if that is what ended the run."""
        failure = self._first_to_fail().failure()
        if failure is not None and failure.get("details"):
            self._listener({"event": "traceback", "message": failure["details"].rstrip()})

    def _plan(self, program_folder: Path) -> list[Task]:
        job = self._job
        own_ps = job.fleet.ps_addresses is None
        free = free_addresses((job.fleet.ps if own_ps else 0) + job.fleet.replicas)
        ps = free[: job.fleet.ps] if own_ps else [Address.parse(text) for text in job.fleet.ps_addresses or ()]
        common = {
            settings.JOB: str(self._folder.job),
            settings.PROGRAM_FOLDER: str(program_folder),
            settings.RUN: self._run,
            settings.OUT: str(self._folder.path),
            settings.PS: ",".join(address.data for address in ps),
            # All processes of this machine cannot have the one port that its own environment may name.
            settings.METRICS_PORT: "0",
            # Nor is any of them a pod, though the launcher may be in one.
            settings.ON_SIGTERM: "",
            settings.START: "",
        }

        def task(role: str, index: int, address: Address) -> Task:
            own = {settings.INDEX: str(index), settings.ADDRESS: address.data}
            return Task(role, index, {**common, **own}, self._folder.log(role, index))

        workers = [task("worker", index, address) for index, address in enumerate(free[len(ps) if own_ps else 0 :])]
        return ([task("ps", index, address) for index, address in enumerate(ps)] if own_ps else []) + workers

    def _is_over(self) -> bool:
        """One look at every process; acts on those that ended."""
        self._follower.read()
        self._heed_signals()
        running = 0
        for task in self._tasks:
            code = task.exit_code()
            if code is None:
                running += 1
            elif code != errors.DONE and (not self._is_ending() or self._is_needed_to_stop(task)):
                self._mend(task, code)
                running += 1
        if self._chief.exit_code() is not None and (self._is_ending() or self._chief.name not in self._restart_at):
            self._end_after_chief()
        return running == 0 or (self._deadline is not None and time.monotonic() > self._deadline)

    def _is_ending(self) -> bool:
        return self._deadline is not None

    def _is_needed_to_stop(self, task: Task) -> bool:
        """Whether the chief was asked to stop and cannot make its last step without this process."""
        return bool(self._signals) and task.was_killed() and self._chief.exit_code() is None

    def _end_within(self, secs: float) -> None:
        latest = time.monotonic() + secs
        self._deadline = latest if self._deadline is None else min(self._deadline, latest)

    def _end_after_chief(self) -> None:
        """The chief tells the others how the run ended; one that was stopped too early to do so leaves it to us."""
        if self._is_chief_gone:
            return
        self._is_chief_gone = True
        self._end_within(LEAVE_SECS)
        if self._chief.exit_code() != errors.DONE:
            for task in self._tasks:
                task.signal(signal.SIGTERM)

    def _heed_signals(self) -> None:
        """The first signal asks the chief to save and stop; the second ends everything."""
        if not self._signals:
            return
        if len(self._signals) > 1:
            self._deadline = 0.0
        elif not self._is_ending():
            self._chief.signal(self._signals[0])
            self._end_within(self._job.deadlines.stop_secs)

    def _mend(self, task: Task, code: int) -> None:
        """Starts a process again, or takes it for the cause of the run's failure."""
        now = time.monotonic()
        due = self._restart_at.get(task.name)
        if due is None:
            if self._is_final(task, code):
                self._failed = task
                self._end_within(LEAVE_SECS)
            else:
                self._restart_at[task.name] = now + RESTART_SECS
        elif now >= due:
            del self._restart_at[task.name]
            task.start(cause=task.cause_of_end())

    def _is_final(self, task: Task, code: int) -> bool:
        if task is self._chief and (self._folder.path / Report.FILE_NAME).exists():
            return True
        if task.was_killed() or code == errors.LOST_PEERS:
            return task.restarts >= self._job.fleet.max_restarts
        return code in PERMANENT_CODES or code == errors.BUG or task is self._chief

    def _report(self) -> Report:
        """The chief's report; one of its own if the chief could not write any."""
        path = self._folder.path
        if (path / Report.FILE_NAME).exists():
            return Report.read(path)
        code, error = self._cause()
        report = Report(
            status="stopped" if self._signals and code > errors.SIGNAL_BASE else "failed",
            exit_code=code,
            error=error,
            name=self._job.name,
            run=self._run,
            mode=self._job.update.mode,
            target_step=self._job.train.steps,
            events=EventLog(path / EventLog.FILE_NAME).read(),
        )
        html.publish(report, path)
        return report

    def _cause(self) -> tuple[int, str]:
        """Exit code and message of a run that left no report."""
        if self._signals:
            return errors.SIGNAL_BASE + self._signals[0], f"stopped by {signal.Signals(self._signals[0]).name}"
        task = self._first_to_fail()
        code = task.exit_code()
        if code is None or code == errors.DONE:
            return errors.BUG, f"{task.name} left no report"
        if task.was_killed():
            code = errors.LOST_PEERS
        return code, f"{task.name}: {task.cause_of_end()}"

    def _first_to_fail(self) -> Task:
        """The process that said first why it failed: others end with its exit code as soon as they hear of it."""
        ended = self._failed or self._chief
        told = [(task, failure) for task in self._tasks if (failure := task.failure()) is not None]
        causes = [(failure["time"], task) for task, failure in told if failure["exit_code"] == ended.exit_code()]
        return min(causes, key=lambda cause: cause[0])[1] if causes else ended


@contextmanager
def _signals_into(received: list[int]) -> Iterator[None]:
    """Collects SIGINT and SIGTERM while the block runs; only Python's main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: received.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _ignore(entry: Mapping[str, Any]) -> None:
    """Listens to nothing."""
