"""The logs of a run of local processes, which are files in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

from psfleet.errors import UsageError
from psfleet.launch.runs import is_running
from psfleet.run_folder import LOCAL, LOGS, owner

POLL_SECS = 0.1
CHIEF = "worker-0"
"""Name of the chief's log."""


def run_folder_of(name: str, folder: Path, only_running: bool = False) -> Path | None:
    """The newest folder of a local run of a job that has logs; None if there is none.

    Args:
        folder: Holds run folders; may be missing.
        only_running: Whether the run must train at present.
    """
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        belongs_to = owner(path) if path.is_dir() else None
        if belongs_to is None or belongs_to.name != name or belongs_to.platform not in ("", LOCAL):
            continue
        if any((path / LOGS).glob("*.log")) and (not only_running or is_running(path, belongs_to)):
            found.append(path)
    return max(found, key=lambda path: (path / LOGS).stat().st_mtime, default=None)


def local_logs(path: Path, task: str | None, follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
    """Log lines of one process of a local run or of all, each with the name of its task.

    Args:
        path: The run folder.
        task: ps-0, worker-1, chief; None: all.
        follow: Whether to wait for more lines until the run ends.
        tail: Only this many of the last lines of each log; None: all.

    Raises:
        UsageError: There is no such log.
    """
    logs = {"chief" if file.stem == CHIEF else file.stem: file for file in sorted((path / LOGS).glob("*.log"))}
    wanted = "chief" if task == CHIEF else task
    if wanted is not None and wanted not in logs:
        raise UsageError(f"{path / LOGS} has no log of {task}, expected one of {', '.join(sorted(logs))}")
    return _lines(path, logs if wanted is None else {wanted: logs[wanted]}, follow, tail)


def _lines(path: Path, logs: dict[str, Path], follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
    """Lines in the order of the logs; incomplete ones are held back until the run has ended."""
    rests, pause = dict.fromkeys(logs, b""), Event()
    positions = dict.fromkeys(logs, 0)
    while True:
        belongs_to = owner(path)
        is_last = not follow or belongs_to is None or not is_running(path, belongs_to)
        for name, file in logs.items():
            with file.open("rb") as log:
                log.seek(positions[name])
                *lines, rests[name] = (rests[name] + log.read()).split(b"\n")
                positions[name] = log.tell()
            if is_last and rests[name]:
                lines.append(rests[name])
            shown = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
            yield from ((name, line.decode(errors="replace")) for line in shown)
        if is_last:
            return
        # The next lines are new.
        tail = None
        pause.wait(POLL_SECS)
