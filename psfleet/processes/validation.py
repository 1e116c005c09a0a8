"""Checks in a separate process that a job's program can be trained, and runs other modules on a program there."""

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
from psfleet.service import process_environment, settings
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
    secs = job.deadlines.start_secs + job.deadlines.first_secs
    try:
        return summary_of(MODULE, str(folder), job.model_dump_json(), "checks the program", secs)
    except subprocess.TimeoutExpired:
        raise DeadlineError(f"program {job.program!r} to be built and to make one step", secs) from None


def summary_of(module: str, argument: str, given: str, does: str, secs: float | None = None) -> str:
    """Runs a module in a process of its own, whose output goes to standard error, and returns its summary.

    Args:
        module: Writes its `Verdict` to the file of its second argument.
        argument: Its first argument.
        given: Its standard input.
        does: What the process does, for an error.
        secs: How long it may take; None: it has no limit.

    Raises:
        UsageError: TensorFlow is not installed.
        ProgramError: The verdict is an error; it has the exit code of that.
        subprocess.TimeoutExpired: It took longer.
        PsfleetError: The process ended without a verdict.
    """
    with tempfile.TemporaryDirectory() as files:
        verdict, printed = Path(files, "verdict.json"), Path(files, "printed")
        try:
            code = _run([module, argument, str(verdict)], given, secs, printed)
        finally:
            lines = printed.read_text(errors="replace").splitlines(True) if printed.exists() else []
            sys.stderr.writelines(line for line in lines if not TENSORFLOWS_OWN.match(line))
        try:
            return Verdict.model_validate_json(verdict.read_bytes()).summary_or_raise()
        except (OSError, ValidationError):
            end = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            raise PsfleetError(f"the process that {does} {end} before it was done") from None


def _run(arguments: list[str], given: str, secs: float | None, printed: Path) -> int:
    """Runs a module with its arguments, and returns its exit code.

    Then it kills the process group: a program may have started processes that never end, such as a pool.
    """
    environment = process_environment.for_child({settings.PARENT: str(os.getpid())})
    process_environment.prepare_tensorflow(environment)
    # -P: the user's current folder must not shadow Python's own modules.
    command = [sys.executable, "-P", "-m", *arguments]
    with printed.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment, start_new_session=True
        )
        try:
            process.communicate(given.encode(), secs)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode
