"""The run-attempt marker: when this attempt of a run started and from which step, and which chief is its newest."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from psfleet.checkpoint import location
from psfleet.errors import StorageError
from psfleet.files import replace_file
from psfleet.job.job import Job
from psfleet.report.attempts import newest_attempt, resumed_from, with_attempt
from psfleet.report.history import History
from psfleet.report.hold import AT_START, HoldRecord
from psfleet.report.hold import FILE_NAME as HOLD_FILE
from psfleet.report.schema import EventLog, Report
from psfleet.run_folder import OF_ONE_ATTEMPT, STARTED, clear
from psfleet.service.settings import Settings
from worker_service.chief import stored_report
from worker_service.fleet_state import States


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, as one of its chief processes sees it.

    Attributes:
        out: The run's folder.
        started: When the attempt started, in seconds since 1970.
        chief: Identifies this chief process in the marker. Not its incarnation: if all ps were restarted, a newer chief
            can have a lower one.
        first_step: Of the newest checkpoint when it started; None: not known.
        changes: What of the job had changed since that checkpoint.
        first_event: Where its events begin in `events.jsonl`, in bytes.
    """

    out: Path
    started: float
    chief: str
    first_step: int | None = None
    changes: tuple[str, ...] = ()
    first_event: int = 0

    def may_report_failure(self, states: States) -> bool:
        """Whether this chief may write a report of a failed or stopped run.

        Args:
            states: Of the ps, which have accepted from this chief how the run ended. If none has, this chief must be
                the newest in the marker: a chief that was frozen may find no ps because the run is over.
        """
        is_known = any(state is not None for state in states) or self.is_newest()
        return is_known and not self.has_result()

    def is_newest(self) -> bool:
        """Whether the run's folder knows no newer chief."""
        return _read(self.out).chief in ("", self.chief)

    def has_result(self) -> bool:
        """Whether the run's folder has the report that this attempt is done, which no other outcome replaces."""
        newest = newest_attempt(self.out)
        return (newest.get("status"), newest.get("started")) == ("done", self.started)

    def trained_secs(self) -> float:
        """Seconds in which chiefs of this attempt have trained, by the newest point that they have recorded."""
        newest = History(self.out / History.FILE_NAME).last()
        return newest.training_seconds if newest is not None and newest.time >= self.started else 0.0

    def entry_in(self, report: Report) -> Report:
        """The report of this attempt, with its entry in `attempts`."""
        return with_attempt(report, self.started, self.first_step, self.changes)


@dataclass(frozen=True)
class _Marker:
    """Content of the marker; without a name and a chief, and with the present time, if it cannot be read."""

    name: str
    time: float
    chief: str
    first_step: int | None = None
    changes: tuple[str, ...] = ()
    first_event: int = 0


def begin(settings: Settings, job: Job | None = None) -> Attempt:
    """Stores this chief as the newest of its attempt; the first one removes what only an earlier attempt needs.

    If the platform names the attempt, a chief is its first one unless the marker in the run's folder has the same name:
    a process that was killed while it imported TensorFlow has not begun, although the next one is a restart of it.
    Else it is the first one if its settings name no cause of a restart.

    Args:
        job: With what the program adds to it; None: that of the settings.

    Raises:
        StorageError: The disk refuses the record by which the run is held.
    """
    chief = secrets.token_hex(8)
    marker = replace(_read(settings.out), chief=chief)
    if is_first(settings):
        clear(settings.out, OF_ONE_ATTEMPT)
        _set_hold(settings)
        if settings.job is not None:
            stored_report.fetch(settings.out, settings.job)
        marker = _new_marker(settings, chief, job or settings.job)
    with suppress(OSError):
        if settings.job is not None:
            location.record(settings.out, settings.job)
        replace_file(settings.out / STARTED, json.dumps(asdict(marker)), writer=chief)
    return Attempt(settings.out, marker.time, chief, marker.first_step, marker.changes, marker.first_event)


def is_first(settings: Settings) -> bool:
    """Whether the chief is the first of its attempt; see `begin`."""
    return settings.start != _read(settings.out).name if settings.start else not settings.cause


def _set_hold(settings: Settings) -> None:
    """Holds the attempt at its start, or not, unless a launcher has done that in the folder."""
    if settings.launched:
        return
    try:
        if settings.is_held:
            HoldRecord(AT_START).write(settings.out)
        else:
            (settings.out / HOLD_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{settings.out / HOLD_FILE} cannot be written: {error.strerror or error}") from error


def _new_marker(settings: Settings, chief: str, job: Job | None) -> _Marker:
    """The marker of an attempt that starts now."""
    first_step, changes = (None, []) if job is None else resumed_from(location.root_of(settings.out, job), job)
    first_event = EventLog(settings.out / EventLog.FILE_NAME).num_bytes()
    return _Marker(settings.start, settings.launched or time.time(), chief, first_step, tuple(changes), first_event)


def _read(out: Path) -> _Marker:
    try:
        content = json.loads((out / STARTED).read_text())
        first_step = content.get("first_step")
        return _Marker(
            name=str(content["name"]),
            time=float(content["time"]),
            chief=str(content.get("chief", "")),
            first_step=None if first_step is None else int(first_step),
            changes=tuple(map(str, content.get("changes", ()))),
            first_event=int(content.get("first_event", 0)),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return _Marker("", time.time(), "")
