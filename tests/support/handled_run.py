"""A run that a test drives by its handle, and that ends with the test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psfleet
from psfleet.errors import DeadlineError, UsageError
from support.local_fleet import PROGRAM, START_SECS, paced_job, processes


@contextmanager
def handled(
    folder: Path,
    *,
    paused: bool = False,
    step_secs: float = 0.0,
    programs: Sequence[str] = (PROGRAM.stem,),
    **sections: Any,
) -> Iterator[psfleet.Run]:
    """Context manager that starts a run in `folder/out`.

    Args:
        paused: Whether the run is held.
        folder, step_secs, programs, sections: As for `paced_job`.
    """
    job, _ = paced_job(folder, step_secs, programs, sections)
    run = psfleet.start(job, out=folder / "out", program_folder=folder, paused=paused)
    try:
        yield run
    finally:
        with suppress(UsageError):
            run.stop()
        with suppress(DeadlineError):
            run.wait(START_SECS)
        for pid in processes(run.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
