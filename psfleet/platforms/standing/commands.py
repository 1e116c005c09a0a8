"""Starts and ends standing fleets."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from psfleet.errors import DeadlineError, LostPeerError, PsfleetError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetDeadlines, FleetFile
from psfleet.platforms.standing.fleet_folder import CLIENT, FleetFolder, find, one_command
from psfleet.platforms.standing.state import FAILED, FleetState, TaskState
from psfleet.platforms.standing.supervisor import start_supervisor
from psfleet.polling import wait_until
from psfleet.service import process_environment
from psfleet.service.health import problem

KILL_SECS = 5.0
"""How long a supervisor may take to end in addition to its processes."""


def up(file: FleetFile) -> FleetAccess:
    """Starts a fleet, and waits until all its processes serve; one that is up already stays as it is.

    Raises:
        UsageError: The fleet is up with other settings, or TensorFlow is not installed.
        LostPeerError: A process fails, or does not serve in time; the fleet is taken down again, and its logs stay.
        DeadlineError: The supervisor does not start in time; as above.
    """
    process_environment.require_tensorflow()
    with one_command(file.name) as folder:
        before = folder.state()
        is_up = folder.is_up() and folder.wanted.exists()
        if (is_up or folder.has_processes()) and folder.file() != file:
            raise UsageError(
                f"fleet {file.name} is up with other settings, expected the same, or `psfleet fleet down "
                f"{file.name}` first"
            )
        if is_up:
            return _await_serving(folder, file.deadlines.start_secs)
        folder.make(file)
        process = start_supervisor(folder)
        try:
            started = f"supervisor {process.pid} to start; see {folder.supervisor_log}"
            wait_until(lambda: _is_supervised(folder, process, before), file.deadlines.start_secs, started)
            return _await_serving(folder, file.deadlines.start_secs)
        except PsfleetError:
            _take_down(folder, keeps_logs=True)
            raise
        except BaseException:
            # Ctrl-C, too: nothing is left behind that was not up.
            _take_down(folder)
            raise


def down(name: str) -> None:
    """Ends a fleet with all its processes, and deletes its folder.

    Raises:
        UsageError: There is no such fleet.
        DeadlineError: A process cannot be ended.
    """
    find(name)
    with one_command(name) as folder:
        # Another command can have taken it down while this one waited for the lock.
        find(name)
        _take_down(folder)


def _take_down(folder: FleetFolder, keeps_logs: bool = False) -> None:
    """Ends all processes, and deletes the folder, or all of it but the logs."""
    file = folder.file()
    secs = (file.deadlines if file is not None else FleetDeadlines()).stop_secs
    # Without it, the supervisor ends the processes and itself, and so does the one that waits for its lock.
    folder.wanted.unlink(missing_ok=True)
    with folder.without_supervisor(secs + KILL_SECS):
        # Those of supervisors that were killed, and of one that ended before it could wait for all.
        state = folder.state()
        tasks = state.tasks if state is not None else []
        for task in tasks:
            task.kill()
        wait_until(lambda: not any(task.is_alive() for task in tasks), KILL_SECS, f"fleet {folder.name} to end")
        folder.remove(keeps_logs)


def _is_supervised(folder: FleetFolder, process: subprocess.Popen[bytes], before: FleetState | None) -> bool:
    """Whether a supervisor has begun: this one, or that of another command which had the lock before it.

    Args:
        before: The state that an earlier supervisor has left.
    """
    state = folder.state()
    if state is not None and state.supervisor == process.pid:
        return True
    if state is not None and (before is None or state.supervisor != before.supervisor) and folder.is_up():
        return True
    if process.poll() is not None:
        lines = folder.supervisor_log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), f"exit code {process.returncode}")
        raise LostPeerError(f"the supervisor of fleet {folder.name} ended at its start: {last}")
    return False


def _await_serving(folder: FleetFolder, timeout_secs: float) -> FleetAccess:
    """Waits until every process answers on its control port."""

    def missing() -> str:
        state = folder.state()
        if state is None:
            return "no state yet"
        if failed := next((task for task in state.tasks if task.state == FAILED), None):
            raise LostPeerError(f"fleet {folder.name}: {failed.name} failed: {failed.cause}")
        return _not_serving(folder, state.tasks)

    try:
        wait_until(missing, timeout_secs, f"fleet {folder.name} to serve", done=lambda seen: not seen)
    except DeadlineError as error:
        raise LostPeerError(f"{error}; its logs are in {folder.supervisor_log.parent}") from error
    return folder.access()


def _not_serving(folder: FleetFolder, tasks: Sequence[TaskState]) -> str:
    """The first process that does not answer, and why; empty: all do."""
    for task in tasks:
        if not task.is_alive():
            return f"{task.name} is {task.state}" + (f": {task.cause}" if task.cause else "")
        if found := problem(task.control_port, folder.credentials(CLIENT)):
            return f"{task.name}: {found}"
    return ""
