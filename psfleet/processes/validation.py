"""Checks in a separate process that a job's program can be trained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from psfleet.errors import DeadlineError, PsfleetError
from psfleet.job.job import Job
from psfleet.report.verdict import Verdict
from psfleet.service import settings
from psfleet.service.stderr_filter import TENSORFLOWS_OWN

MODULE = "worker_service.validation"


def check_program(job: Job, folder: Path) -> str:
    """Has the program in `folder` built, and one batch trained and evaluated; its output goes to standard error.

    Returns:
        What was found, in one line: parameters, shards, and the loss of the batch.

    Raises:
        UsageError: TensorFlow is not installed.
        ProgramError: The program cannot be trained.
        DeadlineError: The program blocks.
        PsfleetError: The process ended without a verdict.
    """
    with tempfile.TemporaryDirectory() as files:
        verdict, printed = Path(files, "verdict.json"), Path(files, "printed")
        try:
            code = _run(job, folder, verdict, printed)
        finally:
            lines = printed.read_text(errors="replace").splitlines(True) if printed.exists() else []
            sys.stderr.writelines(line for line in lines if not TENSORFLOWS_OWN.match(line))
        try:
            return Verdict.model_validate_json(verdict.read_bytes()).summary_or_raise()
        except (OSError, ValidationError):
            end = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            raise PsfleetError(f"the process that checks the program {end} before it was done") from None


def _run(job: Job, folder: Path, verdict: Path, printed: Path) -> int:
    """Runs the process that checks the program, and returns its exit code.

    Then it kills the process group: a program may have started processes that never end, such as a pool.
    """
    environment = settings.for_child({})
    settings.prepare_tensorflow(environment)
    secs = job.deadlines.start_secs + job.deadlines.first_secs
    # -P: the user's current folder must not shadow Python's own modules.
    command = [sys.executable, "-P", "-m", MODULE, str(folder), str(verdict)]
    with printed.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment, start_new_session=True
        )
        try:
            process.communicate(job.model_dump_json().encode(), secs)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"program {job.program!r} to be built and to make one step", secs) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode
