"""The run-attempt marker: when this attempt of a run started, which chief is its newest, and which files must go."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from psfleet.report.schema import Report
from psfleet.run_folder import RECORDED, STARTED, clear
from psfleet.service.settings import Settings
from worker_service.fleet_state import States


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, as one of its chief processes sees it.

    Attributes:
        out: The run's folder.
        started: When the attempt started, in seconds since 1970.
        chief: Identifies this chief process in the marker. Not its incarnation: if all ps were restarted, a newer chief
            can have a lower one.
    """

    out: Path
    started: float
    chief: str

    def may_report_failure(self, states: States) -> bool:
        """Whether this chief may write a report of a failed or stopped run.

        Args:
            states: Of the ps, none of which knows a newer chief. If none answers, this chief must be the newest in the
                marker: a chief that was frozen may find no ps because the run is over.
        """
        is_known = any(state is not None for state in states) or _read(self.out).chief in ("", self.chief)
        return is_known and not has_result(self.out)


@dataclass(frozen=True)
class _Marker:
    """Content of the marker; without a name and a chief, and with the present time, if it cannot be read."""

    name: str
    started: float
    chief: str


def begin(settings: Settings) -> Attempt:
    """Stores this chief as the newest of its attempt; the first one removes the records of earlier attempts.

    A chief is not the first of its attempt if its settings name the cause of a restart, or if the platform names the
    attempt and the marker in the run's folder has the same name.
    """
    marker, name = _read(settings.out), settings.start
    started = marker.started
    if is_first(settings):
        clear(settings.out, RECORDED)
        started = time.time()
    else:
        name = marker.name or name
    chief = secrets.token_hex(8)
    with suppress(OSError):
        temporary = settings.out / f"{STARTED}.{chief}.tmp"
        temporary.write_text(json.dumps({"name": name, "time": started, "chief": chief}))
        temporary.replace(settings.out / STARTED)
    return Attempt(settings.out, started, chief)


def is_first(settings: Settings) -> bool:
    """Whether the chief is the first of its attempt; see `begin`."""
    return not settings.cause and (not settings.start or settings.start != _read(settings.out).name)


def has_result(out: Path) -> bool:
    """Whether a run's folder has the report of a run that is done, which no other outcome replaces."""
    try:
        report = json.loads((out / Report.FILE_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.get("status") == "done"


def _read(out: Path) -> _Marker:
    try:
        marker = json.loads((out / STARTED).read_text())
        return _Marker(str(marker["name"]), float(marker["time"]), str(marker.get("chief", "")))
    except (OSError, ValueError, TypeError, KeyError):
        return _Marker("", time.time(), "")
