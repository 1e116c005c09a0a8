"""The status of runs of local processes, from the lock of their folders and the logs of their chiefs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psfleet.addresses import num_own_ps
from psfleet.errors import BadJobError
from psfleet.job.job import Job, job_from_json
from psfleet.launch.logs import is_table
from psfleet.launch.runs import NO_REPORT, RUNNING, is_running, log_entries, runs_in
from psfleet.launch.status import TaskStatus
from psfleet.run_folder import LOCAL, RunFolder, owner

STARTING = "starting"


def local_statuses(folder: Path, name: str | None) -> list[TaskStatus]:
    """The processes of the runs in a folder that train at present, or of those of one job.

    Args:
        folder: Holds run folders; may be missing.
        name: The job's name; None: all.
    """
    rows = []
    for path in folders_in(folder):
        found = owner(path)
        if found is not None and name in (None, found.name) and is_running(path, found):
            rows += _rows(path, found.name)
    return rows


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, by name; none if it is missing or cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def not_running(folder: Path, name: str | None) -> str:
    """Says for a message that no job or fleet of a name runs on this machine, and how its newest run here has ended.

    Args:
        folder: Holds run folders; may be missing.
        name: The job's or fleet's name; None: of none, and the text is empty.
    """
    if name is None:
        return ""
    entries = runs_in(folder) if folder.is_dir() else []
    found = next((each for each in entries if each.job == name and each.platform in ("", LOCAL)), None)
    if found is None or found.status in (RUNNING, NO_REPORT):
        return f"no run {name} trains in {folder}/, and no fleet {name} stands on this machine"
    return f"{name} does not run: {found.run} is {found.status} at step {found.step} of {found.target_step}"


def _rows(path: Path, name: str) -> list[TaskStatus]:
    """A row for each process: from the chief's newest table, or, if that does not have it yet, one that it starts."""
    entries = log_entries(path, "worker", 0)
    table: Mapping[str, Any] = next(filter(is_table, reversed(entries)), {})
    job = _job(path)
    # The table has the ps within workers, too.
    listed = () if job is not None and job.fleet.colocate else table.get("ps", ())
    ps = [_row(path, name, "ps", each) for each in listed]
    workers = [_row(path, name, each["role"], each) for each in table.get("workers", ())]
    loaders: list[TaskStatus] = []
    known = {row.name for row in [*ps, *workers]}
    for role, index in _started(job):
        if _process(path, role, index) not in known:
            rows = {"ps": ps, "loader": loaders}.get(role, workers)
            # The chief's table has no loaders.
            state = RUNNING if role == "loader" else STARTING
            rows.append(_unlisted(path, name, role, index, state))
    return [*ps, *loaders, *workers]


def _job(path: Path) -> Job | None:
    """The job of a run folder; None if it cannot be read."""
    try:
        return job_from_json(RunFolder(path).job.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BadJobError):
        return None


def _started(job: Job | None) -> list[tuple[str, int]]:
    """Role and index of each process that the launcher starts; of the chief only if the job is not known."""
    if job is None:
        return [("chief", 0)]
    workers = [(job.fleet.role(index), index) for index in range(job.fleet.processes)]
    ps, loaders = range(num_own_ps(job)), range(job.input.num_loaders)
    return [*[("ps", index) for index in ps], *[("loader", index) for index in loaders], *workers]


def _unlisted(path: Path, name: str, role: str, index: int, state: str) -> TaskStatus:
    """A process that the chief's table does not have, with the newest message of its log."""
    entries = log_entries(path, _log_role(role), index)
    last = str(entries[-1].get("message", "")) if entries else ""
    return TaskStatus(name, role, index, _process(path, role, index), state, last_event=last)


def _row(path: Path, name: str, role: str, row: Mapping[str, Any]) -> TaskStatus:
    return TaskStatus(
        fleet=name,
        role=role,
        index=row["index"],
        name=_process(path, role, row["index"]),
        state=RUNNING if row["alive"] else "away",
        step=row["step"],
        rate=row["rate"] if row["alive"] else None,
        restarts=row["restarts"],
        last_event=row["last_event"],
    )


def _process(path: Path, role: str, index: int) -> str:
    """What a local process is named by: its folder and log."""
    return f"{path}:{_log_role(role)}-{index}"


def _log_role(role: str) -> str:
    """The role in the name of a process's log: ps, loader or worker."""
    return role if role in ("ps", "loader") else "worker"
