"""The logs of a run of local processes, which are files in its folder."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from psfleet.errors import UsageError
from psfleet.launch.runs import is_running
from psfleet.platforms.local.growing_log import GrowingLog
from psfleet.platforms.local.status import folders_in
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
    for path in folders_in(folder):
        belongs_to = owner(path)
        if belongs_to is None or belongs_to.name != name or belongs_to.platform not in ("", LOCAL):
            continue
        if has_logs(path) and (not only_running or is_running(path, belongs_to)):
            found.append(path)
    return max(found, key=lambda path: (path / LOGS).stat().st_mtime, default=None)


def has_logs(path: Path) -> bool:
    """Whether a run folder has logs of processes."""
    return any((path / LOGS).glob("*.log"))


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
    wanted = "chief" if task == CHIEF else task
    logs = _logs(path, wanted)
    if wanted is not None and not logs:
        expected = ", ".join(sorted(_logs(path, None)))
        raise UsageError(f"{path / LOGS} has no log of {task}, expected one of {expected}")
    if not logs and not follow:
        raise UsageError(f"{path}: has no logs, expected the folder of a run of `psfleet train`")
    return _lines(path, wanted, follow, tail)


def _logs(path: Path, wanted: str | None) -> dict[str, Path]:
    """The logs of a run folder by task, or the one of a task."""
    files = sorted((path / LOGS).glob("*.log"))
    found = {"chief" if file.stem == CHIEF else file.stem: file for file in files}
    return found if wanted is None else {name: file for name, file in found.items() if name == wanted}


def _lines(path: Path, wanted: str | None, follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
    """Lines in the order of the logs; incomplete ones are held back until the run has ended."""
    growing: dict[Path, GrowingLog] = {}
    pause = Event()
    while True:
        belongs_to = owner(path)
        is_last = not follow or belongs_to is None or not is_running(path, belongs_to)
        # Each time anew: a run that starts creates them one after the other.
        for name, file in _logs(path, wanted).items():
            lines = growing.setdefault(file, GrowingLog(file)).read(is_last)
            shown = lines if tail is None else deque(lines, maxlen=tail)
            yield from ((name, line) for line in shown)
        if is_last:
            return
        # The next lines are new.
        tail = None
        pause.wait(POLL_SECS)
