"""Collects the results of a run and validates them: no success without a verified checkpoint."""

from __future__ import annotations

import shutil
import signal
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from psfleet import errors
from psfleet.errors import PERMANENT_CODES, STOPPED, LostPeerError
from psfleet.job.job import Job
from psfleet.launch.logs import fleet_table, with_indices
from psfleet.launch.platform import TRAINING, Member, Platform, chief_of, gone_for_good, require
from psfleet.report import html
from psfleet.report.attempts import earlier_report, newest_checkpoint, resumed_from, with_attempt, with_end
from psfleet.report.evidence import first_failure, validated, with_own_checkpoints
from psfleet.report.schema import EvaluationLog, EventLog, History, Report
from psfleet.run_folder import CHECKPOINTS, LOGS, TENSORBOARD, RunFolder, claimed

ALWAYS = (CHECKPOINTS, TENSORBOARD, History.FILE_NAME, EvaluationLog.FILE_NAME)
"""Results that are copied whatever their age: a resumed run continues them."""
OF_THIS_START = (EventLog.FILE_NAME, Report.FILE_NAME)
"""Results of which only those of this start of the fleet replace the ones in the run folder."""
STAGING = ".collected"
"""Folder inside the run folder for files that are not whole yet, or that do not replace those of the run folder."""


@dataclass(frozen=True)
class Start:
    """How an attempt of a run began, for the report of one whose chief left none.

    Attributes:
        run: The attempt's identifier.
        started: In seconds since 1970.
        first_step: Of the newest checkpoint at that time; None: not known.
        changes: What of the job had changed since that checkpoint.
        is_watched: Whether a launcher has followed it to its end, which is now.
    """

    run: str
    started: float
    first_step: int | None = None
    changes: tuple[str, ...] = ()
    is_watched: bool = False

    @classmethod
    def now(cls, run: str, folder: RunFolder, job: Job) -> Start:
        """An attempt that a launcher starts."""
        first_step, changes = resumed_from(folder.path / CHECKPOINTS, job)
        return cls(run, time.time(), first_step, tuple(changes), is_watched=True)


def collect(platform: Platform, name: str, folder: Path, on: str) -> Report:
    """Copies results and logs of a run on a platform named `on` into a run folder, and publishes its report there.

    Returns:
        The chief's report, with the path of the copied checkpoint; or one that says why there is none, or that the
        copy is not valid. It is merged with the reports of earlier attempts, in the folder and on the platform.

    Raises:
        UsageError: There is no such fleet, or the folder cannot be used.
        LostPeerError: The copy broke off.
    """
    members = require(platform, name)
    job = platform.job(name)
    chief, gone = chief_of(members), gone_for_good(members, job)
    created = chief.created if chief is not None else 0.0
    with claimed(folder, job, fresh=False, platform=on) as run_folder:
        # Before the copy, which needs a volume or a pod: if it fails, the logs show why.
        _save_logs(platform, name, members, run_folder)
        copied = _copied(platform, job, run_folder.path, created)
        if copied is not None and chief is not None and _is_of_last_process(copied, chief):
            report = validated(copied, run_folder.path)
        else:
            ended = unreported(job, run_folder, members, gone, Start(job.name, created))
            report = ended if copied is None else with_end(copied, ended.status, ended.exit_code, ended.error)
        return html.publish(with_failure(report, gone), run_folder.path)


def _copied(platform: Platform, job: Job, folder: Path, created: float) -> Report | None:
    """Copies what belongs to the run; a report of an earlier start is published if the folder lacks its attempts.

    Returns:
        The chief's report of this start; None if it left none.
    """
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        _copy(platform, job, folder)
        report, path = earlier_report(staging), staging / Report.FILE_NAME
        report = None if report is None else with_own_checkpoints(report, folder)
        is_new = report is not None and path.stat().st_mtime >= int(created)
        events = staging / EventLog.FILE_NAME
        is_missing = not (folder / EventLog.FILE_NAME).exists()
        if events.exists() and (is_missing or events.stat().st_mtime >= int(created)):
            events.replace(folder / EventLog.FILE_NAME)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if report is None or is_new:
        return report if report is None or report.attempts else with_attempt(report, created, None, [])
    if _has_more(report, folder):
        html.publish(report, folder)
    return None


def _has_more(report: Report, folder: Path) -> bool:
    """Whether a report has attempts that the one in the run folder lacks."""
    own = earlier_report(folder)
    known = set() if own is None else {each.started for each in own.attempts}
    return own is None or any(each.started not in known for each in report.attempts)


def _copy(platform: Platform, job: Job, folder: Path) -> None:
    """Extracts what belongs to the run."""
    with platform.tar(job, [*ALWAYS, *OF_THIS_START]) as archives:
        for chunks in archives:
            try:
                _extract(chunks, folder)
            except tarfile.TarError as error:
                raise LostPeerError(f"the copy of the results broke off: {error}") from error
            # To the end of the stream: there the platform raises if the archive is incomplete.
            for _ in chunks:
                continue


def _extract(chunks: Iterator[bytes], folder: Path) -> None:
    """Extracts an archive; a file replaces that of the run folder when it is whole."""
    # A stream is only read. It copies what is left of a piece at each read, so that pieces must be small.
    pieces = (each[at : at + tarfile.RECORDSIZE] for each in chunks for at in range(0, len(each), tarfile.RECORDSIZE))
    source: Any = SimpleNamespace(read=lambda size: next(pieces, b""))
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for entry in archive:
            top = Path(entry.name).parts[:1]
            if not top or top[0] not in (*ALWAYS, *OF_THIS_START):
                continue
            archive.extract(entry, folder / STAGING, filter="data")
            if entry.isfile() and top[0] in ALWAYS:
                (folder / entry.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / STAGING / entry.name).replace(folder / entry.name)


def _save_logs(platform: Platform, name: str, members: Sequence[Member], folder: RunFolder) -> None:
    table = fleet_table(platform, members)
    for member in [*with_indices(platform, members, table), *platform.scaled_away(name)]:
        lines = platform.log(member) if member.role in TRAINING else iter(())
        # Read even if the member has no process: a member that waits for its next one can have the log of the last.
        first = next(lines, None)
        if first is None:
            continue
        role = "ps" if member.role == "ps" else "worker"
        path = folder.log(role, member.index) if member.index is not None else folder.path / LOGS / f"{member.name}.log"
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in chain([first], lines))


def _is_of_last_process(report: Report, chief: Member) -> bool:
    """Whether a report is that of the chief's last process, or of a permanent failure after which it was restarted."""
    if not chief.is_over:
        return report.exit_code in PERMANENT_CODES
    return report.exit_code == chief.exit_code or (report.exit_code in PERMANENT_CODES and chief.has_failed)


def unreported(job: Job, folder: RunFolder, members: Sequence[Member], gone: Member | None, start: Start) -> Report:
    """The report of an attempt whose chief left none.

    Args:
        gone: The member whose loss ended the run, if one did.
        start: Of the attempt.
    """
    code, error = _cause(members, folder, gone)
    checkpoint = newest_checkpoint(folder.path)
    seconds = max(0.0, time.time() - start.started) if start.is_watched else 0.0
    events = EventLog(folder.path / EventLog.FILE_NAME).read()
    report = Report(
        status="stopped" if code in STOPPED else "failed",
        exit_code=code,
        error=error,
        name=job.name,
        run=start.run,
        mode=job.update.mode,
        target_step=job.train.steps,
        final_step=checkpoint.step if checkpoint is not None else 0,
        checkpoint=checkpoint,
        seconds=seconds,
        events=[event for event in events if event.time >= start.started],
    )
    return with_attempt(report, start.started, start.first_step, list(start.changes))


def with_failure(report: Report, gone: Member | None) -> Report:
    """Names the member whose loss ended the run as the cause, in the report of a chief that was stopped for it."""
    if report.exit_code not in STOPPED or gone is None:
        return report
    error = f"{gone.name}: {gone.cause}, and was not started again"
    return with_end(report, "failed", _code(gone), error)


def _cause(members: Sequence[Member], folder: RunFolder, gone: Member | None) -> tuple[int, str]:
    """Exit code and message of a run without a report.

    They are those of its first permanent failure, or of the member whose loss ended it, or else of the chief.
    """
    training = [member for member in members if member.role in TRAINING]
    chief = chief_of(training)
    permanent = next((m for m in training if m.ends_run), None)
    lost = gone if gone is not None and gone.role != "chief" else None
    failed = permanent or lost or (chief if chief is not None and chief.exit_code is not None else None)
    failed = failed or next((m for m in training if m.has_failed and m.is_over), None)
    code = failed.exit_code if failed is not None else None
    if failed is None or not code:
        return errors.BUG, "the chief left no report"
    if code in STOPPED:
        return code, f"stopped by {signal.Signals(code - errors.SIGNAL_BASE).name}"
    first = first_failure(folder.path, code)
    return _code(failed), first if first is not None else f"{failed.name}: {failed.cause}"


def _code(member: Member) -> int:
    """The exit code of a run that ends because of a member; a killed one is a lost peer."""
    code = member.exit_code or errors.BUG
    return errors.LOST_PEERS if code > errors.SIGNAL_BASE else code
