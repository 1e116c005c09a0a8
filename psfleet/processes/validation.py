"""Has a process of its own check that a job's program can be trained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from psfleet.errors import PsfleetError
from psfleet.job.job import Job
from psfleet.report.verdict import Verdict
from psfleet.service.settings import prepare_tensorflow

MODULE = "worker_service.validation"
TENSORFLOWS_OWN = re.compile(r"WARNING: All log messages before absl::InitializeLog|I\d{4} \d\d:\d\d:\d\d")
"""Lines that TensorFlow writes when it is imported, whatever its log level is."""


def check_program(job: Job, folder: Path) -> str:
    """Checks the program in `folder`; what it prints goes to standard error.

    Returns:
        What was found, in one line.

    Raises:
        UsageError: TensorFlow is not installed.
        ProgramError: The program cannot be trained.
        PsfleetError: The process ended without a verdict.
    """
    environment = dict(os.environ)
    prepare_tensorflow(environment)
    # -P: the user's current folder must not shadow Python's own modules.
    command = [sys.executable, "-P", "-m", MODULE, str(folder)]
    done = subprocess.run(
        command, input=job.model_dump_json(), capture_output=True, text=True, env=environment, check=False
    )
    sys.stderr.writelines(line for line in done.stderr.splitlines(True) if not TENSORFLOWS_OWN.match(line))
    try:
        verdict = Verdict.model_validate_json(done.stdout)
    except ValidationError:
        end = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"exited with {done.returncode}"
        raise PsfleetError(f"the process that checks the program {end} before it was done") from None
    return verdict.summary_or_raise()
