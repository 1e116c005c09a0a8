"""Collects the results of a run and validates them: no success without a verified checkpoint."""

from __future__ import annotations

import signal
import tarfile
from collections.abc import Iterator, Sequence
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
from psfleet.report.evidence import first_failure, validated
from psfleet.report.schema import EventLog, History, Report
from psfleet.run_folder import CHECKPOINTS, LOGS, TENSORBOARD, RunFolder, claimed

ALWAYS = (CHECKPOINTS, TENSORBOARD, History.FILE_NAME)
"""Results that are copied whatever their age: a resumed run continues them."""
OF_THIS_START = (EventLog.FILE_NAME, Report.FILE_NAME)
"""Results that are copied only if they were written since the fleet was created."""


def collect(platform: Platform, name: str, folder: Path, on: str) -> Report:
    """Copies results and logs of a run on a platform named `on` into a run folder, and publishes its report there.

    Returns:
        The chief's report, with the path of the copied checkpoint; or one that says why there is none, or that the
        copy is not valid.

    Raises:
        UsageError: There is no such fleet, or the folder cannot be used.
        LostPeerError: The copy broke off.
    """
    members = require(platform, name)
    job = platform.job(name)
    chief, gone = chief_of(members), gone_for_good(members, job)
    with claimed(folder, job, fresh=False, platform=on) as run_folder:
        # Before the copy, which needs a volume or a pod: if it fails, the logs show why.
        _save_logs(platform, name, members, run_folder)
        _copy(platform, job, run_folder.path, chief.created if chief is not None else 0.0)
        report = Report.read(run_folder.path) if (run_folder.path / Report.FILE_NAME).exists() else None
        if report is None or chief is None or not _is_of_last_process(report, chief):
            report = unreported(job, run_folder, members, gone)
        else:
            report = validated(report, run_folder.path)
        report = with_failure(report, gone)
        html.publish(report, run_folder.path)
        return report


def _copy(platform: Platform, job: Job, folder: Path, created: float) -> None:
    """Extracts the results of a run from the platform's archives; see `ALWAYS` and `OF_THIS_START`."""
    with platform.tar(job, [*ALWAYS, *OF_THIS_START]) as archives:
        for chunks in archives:
            try:
                _extract(chunks, folder, created)
            except tarfile.TarError as error:
                raise LostPeerError(f"the copy of the results broke off: {error}") from error
            # To the end of the stream: there the platform raises if the archive is incomplete.
            for _ in chunks:
                continue


def _extract(chunks: Iterator[bytes], folder: Path, created: float) -> None:
    # tarfile copies the unread rest of a piece at each read, so pieces must be small.
    pieces = (each[at : at + tarfile.RECORDSIZE] for each in chunks for at in range(0, len(each), tarfile.RECORDSIZE))
    source: Any = SimpleNamespace(read=lambda size: next(pieces, b""))
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for entry in archive:
            top = Path(entry.name).parts[:1]
            if top and (top[0] in ALWAYS or (top[0] in OF_THIS_START and entry.mtime >= int(created))):
                archive.extract(entry, folder, filter="data")


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


def unreported(
    job: Job, folder: RunFolder, members: Sequence[Member], gone: Member | None, run: str | None = None
) -> Report:
    """The report of a run whose chief left none.

    Args:
        gone: The member whose loss ended the run, if one did.
        run: The run's id; the job's name by default.
    """
    code, error = _cause(members, folder, gone)
    return Report(
        status="stopped" if code in STOPPED else "failed",
        exit_code=code,
        error=error,
        name=job.name,
        run=run or job.name,
        mode=job.update.mode,
        target_step=job.train.steps,
        events=EventLog(folder.path / EventLog.FILE_NAME).read(),
    )


def with_failure(report: Report, gone: Member | None) -> Report:
    """Names the member whose loss ended the run as the cause, in the report of a chief that was stopped for it."""
    if report.exit_code not in STOPPED or gone is None:
        return report
    error = f"{gone.name}: {gone.cause}, and was not started again"
    return report.model_copy(update={"status": "failed", "exit_code": _code(gone), "error": error})


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
