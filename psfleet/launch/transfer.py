"""Copies the files of a run from its platform into a run folder; an incomplete copy replaces nothing."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from psfleet.checkpoint.location import CHECKPOINTS
from psfleet.errors import LostPeerError, StorageError
from psfleet.job.job import Job
from psfleet.launch.logs import fleet_table, with_indices
from psfleet.launch.platform import TRAINING, Member, Platform
from psfleet.report.attempts import earlier_report, with_attempt
from psfleet.report.evidence import with_own_checkpoints
from psfleet.report.pictures import pictures
from psfleet.report.schema import EventLog, Report
from psfleet.run_folder import CALLBACKS, CONTINUED, LOGS, PICTURES, TENSORBOARD, RunFolder

ALWAYS = (CHECKPOINTS, TENSORBOARD, PICTURES, CALLBACKS, *CONTINUED)
"""Results that are copied whatever their age: a resumed run continues them."""
OF_THIS_START = (EventLog.FILE_NAME, Report.FILE_NAME)
"""Results of which only those of this start of the fleet replace the ones in the run folder."""
STAGING = ".collected"
"""Folder inside the run folder for files that are not whole yet, or that do not replace those of the run folder."""


@dataclass(frozen=True)
class CopiedReport:
    """The report on a platform, with its checkpoint as copied.

    Attributes:
        report: Its content; each report has an attempt.
        is_new: Whether it was written since this start of the fleet was created.
    """

    report: Report
    is_new: bool

    def has_more_than(self, folder: Path) -> bool:
        """Whether it has attempts that the report in a run folder lacks."""
        own = earlier_report(folder)
        known = set() if own is None else {each.started for each in own.attempts}
        return own is None or any(each.started not in known for each in self.report.attempts)


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Context manager that turns errors of the file system into `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"the results cannot be copied to {folder}: {error.strerror or error}") from error


def copy_results(platform: Platform, job: Job, folder: Path, created: float) -> CopiedReport | None:
    """Copies what belongs to a run, except for its report.

    Args:
        created: When this start of the fleet was created, in seconds since 1970.

    Returns:
        The report; None if the platform has none.

    Raises:
        LostPeerError: The copy broke off.
        StorageError: The folder cannot be written.
    """
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        with storage_errors(folder):
            _copy(platform, job, folder)
            _take_events(staging / EventLog.FILE_NAME, folder / EventLog.FILE_NAME, created)
            report = earlier_report(staging)
            if report is None:
                return None
            # Archives round times down to seconds.
            is_new = (staging / Report.FILE_NAME).stat().st_mtime > created - 1
            report = report if report.attempts else with_attempt(report, created if is_new else 0.0, None, [])
            return CopiedReport(with_own_checkpoints(report, folder), is_new)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _take_events(copied: Path, own: Path, created: float) -> None:
    """Replaces the events of a run folder by those of this start of the fleet, or by more of them."""
    if not copied.exists():
        return
    found = copied.stat()
    if not own.exists() or found.st_mtime > created - 1 or found.st_size > own.stat().st_size:
        copied.replace(own)


def _copy(platform: Platform, job: Job, folder: Path) -> None:
    """Extracts what belongs to the run; a file replaces that of the run folder when it is whole."""
    shown: set[Path] = set()
    for name in extracted(platform, job, [*ALWAYS, *OF_THIS_START], folder / STAGING):
        if name.parts[0] in ALWAYS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / STAGING / name).replace(folder / name)
            if name.parts[0] == PICTURES:
                shown.add(folder / name)
    # The chief deletes pictures of the steps between.
    for picture in chain.from_iterable(pictures(folder).values()) if shown else ():
        if picture.path not in shown:
            picture.path.unlink()


def extracted(platform: Platform, job: Job, names: Sequence[str], folder: Path) -> Iterator[Path]:
    """Extracts the regular files of a fleet's results of these names, as far as there are any, into a folder.

    Yields:
        The path of each file within the folder, when it is whole.

    Raises:
        LostPeerError: The copy broke off.
    """
    with platform.tar(job, names) as archives:
        for chunks in archives:
            try:
                yield from _extract(chunks, names, folder)
            except tarfile.TarError as error:
                raise LostPeerError(f"the copy of the results broke off: {error}") from error
            # What follows the archive: the platform's own verdict on its completeness.
            for _ in chunks:
                continue


def _extract(chunks: Iterator[bytes], names: Sequence[str], folder: Path) -> Iterator[Path]:
    """As `extracted`, of one archive."""
    # A stream is only read. It copies what is left of a piece at each read, so that pieces must be small.
    pieces = (each[at : at + tarfile.RECORDSIZE] for each in chunks for at in range(0, len(each), tarfile.RECORDSIZE))
    source: Any = SimpleNamespace(read=lambda size: next(pieces, b""))
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for entry in archive:
            top = Path(entry.name).parts[:1]
            if not top or top[0] not in names:
                continue
            # Folders of callbacks have what users put there: links, which may lead anywhere, and pipes stay behind.
            if entry.isfile() or entry.isdir():
                archive.extract(entry, folder, filter="data")
            if entry.isfile():
                yield Path(entry.name)


def save_logs(platform: Platform, name: str, members: Sequence[Member], folder: RunFolder) -> None:
    """Writes the logs of all members of a fleet, and of those that were scaled away, to the run folder.

    Raises:
        StorageError: It cannot be written.
    """
    table = fleet_table(platform, members)
    for member in [*with_indices(platform, members, table), *platform.scaled_away(name)]:
        lines = platform.log(member) if member.role in TRAINING else iter(())
        # A member that waits for its process may have the log of an earlier one.
        first = next(lines, None)
        if first is None:
            continue
        role = member.role if member.role in ("ps", "loader") else "worker"
        path = folder.log(role, member.index) if member.index is not None else folder.path / LOGS / f"{member.name}.log"
        with storage_errors(folder.path), path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in chain([first], lines))
