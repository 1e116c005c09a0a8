"""Copies what a fleet left out of its volume, with the logs of its containers, and says how the run ended."""

from __future__ import annotations

import io
import signal
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docker.errors import NotFound

from psfleet import errors
from psfleet.job.job import Job
from psfleet.launch import container
from psfleet.launch.chunks import Chunks
from psfleet.launch.compose.members import KILLED, TRAINING, Member, seconds, table_of, worker_index
from psfleet.launch.proof import ALWAYS, OF_THIS_START, STOPPED, checked, first_failure, unreported
from psfleet.report import html
from psfleet.report.schema import Report
from psfleet.run_folder import RunFolder

FINE = (errors.DONE, *STOPPED)


def collect(found: Sequence[Member], leader: Member, job: Job, folder: RunFolder) -> Report:
    """Copies results and logs into a run folder, and publishes the report there.

    Returns:
        The chief's report, its checkpoint's path that of the copy; one that says why there is none, or why it is wrong.
    """
    for name in ALWAYS:
        _copy(leader, name, folder.path, since=0.0)
    created = leader.time("Created")
    copied = [name for name in OF_THIS_START if _copy(leader, name, folder.path, since=created)]
    _save_logs(found, leader, folder)
    report = Report.read(folder.path) if Report.FILE_NAME in copied else None
    if report is None or not _is_last_word(report, leader):
        report = unreported(job, folder, *_cause(leader, folder))
    else:
        report = checked(report, folder)
    report = _blamed(report, found)
    html.publish(report, folder.path)
    return report


def _is_last_word(report: Report, leader: Member) -> bool:
    """Whether it is the report of the chief's last process; one that ended for good is begun again for a while."""
    if not leader.is_over and report.exit_code in errors.PERMANENT_CODES:
        return True
    return leader.is_over and report.exit_code == leader.exit_code


def _copy(member: Member, name: str, folder: Path, since: float) -> bool:
    """Copies a file or folder from the volume, also of an ended container; whether it is there and new enough."""
    try:
        chunks, stat = member.container.get_archive(f"{container.OUT}/{name}")
    except NotFound:
        return False
    # Directories are as old as their last change, and always taken.
    if since and seconds(stat["mtime"]) < since:
        return False
    with tarfile.open(fileobj=io.BufferedReader(Chunks(filter(None, chunks))), mode="r|") as archive:
        archive.extractall(folder, filter="data")
    return True


def _save_logs(found: Sequence[Member], leader: Member, folder: RunFolder) -> None:
    table = table_of(leader)
    for member in found:
        if member.role not in TRAINING:
            continue
        path = _log(folder, member, table)
        with path.open("ab") as file:
            file.writelines(member.container.logs(stream=True, follow=False))


def _log(folder: RunFolder, member: Member, table: dict[str, Any]) -> Path:
    if member.role == "ps":
        return folder.log("ps", member.number)
    index = worker_index(member, table)
    if index is not None:
        return folder.log("worker", index)
    return folder.path / "logs" / f"worker-without-index-{member.number}.log"


def _blamed(report: Report, found: Sequence[Member]) -> Report:
    """A run that `psfleet up` stopped because one of its parts was gone for good failed of that."""
    if report.exit_code not in STOPPED:
        return report
    gone = next((one for one in found if one.role in TRAINING and one.is_over and one.exit_code not in FINE), None)
    if gone is None:
        return report
    code = errors.LOST_PEERS if gone.exit_code == KILLED else gone.exit_code
    error = f"{gone.container.name} {ending(gone)}, and was not started again"
    return report.model_copy(update={"status": "failed", "exit_code": code, "error": error})


def _cause(leader: Member, folder: RunFolder) -> tuple[int, str]:
    """Exit code and message of a run without a report."""
    code = leader.exit_code
    if (told := first_failure(folder, code)) is not None:
        return code, told
    if code == errors.DONE:
        return errors.BUG, "the chief left no report"
    if code in STOPPED:
        return code, f"stopped by {signal.Signals(code - errors.SIGNAL_BASE).name}"
    if code == KILLED:
        return errors.LOST_PEERS, f"the chief {ending(leader)}"
    return code, f"the chief {ending(leader)}"


def ending(member: Member) -> str:
    """How a container ended, in a few words."""
    if member.is_out_of_memory:
        return f"was killed: out of memory, the limit is {member.memory_bytes / (1 << 30):.2g} GiB"
    if member.exit_code > errors.SIGNAL_BASE:
        return f"was killed by {signal.Signals(member.exit_code - errors.SIGNAL_BASE).name}"
    if member.state["Error"]:
        return f"did not start: {member.state['Error']}"
    return f"ended with exit code {member.exit_code}"
