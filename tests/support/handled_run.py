"""A run that a test drives by its handle, and that ends with the test."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psfleet
from psfleet.errors import DeadlineError, UsageError
from support.local_fleet import JOB, PROGRAM, START_SECS, processes


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
        folder: Takes the programs, and a folder `gates` with a file `pace`; see `paced_program`.
        paused: Whether the run is held.
        step_secs: The pace.
        programs: The module to train, whose `build` takes `gates` and `step_secs`, and those that it imports.
        sections: Of the job file; where they are mappings, what they lack is as in `support.local_fleet.JOB`.
    """
    for program in programs:
        shutil.copy(PROGRAM.with_name(f"{program}.py"), folder)
    gates = folder / "gates"
    gates.mkdir()
    (gates / "pace").touch()
    job = {**JOB, "program": f"{programs[0]}:build", "options": {"gates": str(gates), "step_secs": step_secs}}
    job |= {
        name: {**job.get(name, {}), **section} if isinstance(section, Mapping) else section
        for name, section in sections.items()
    }
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
