"""The launcher process of a run that `psfleet.start` starts; it outlives the process that started it.

It reads the request from stdin, and writes one line to stdout once it has claimed the run folder or has failed to.
After that nobody reads its output, which goes to `logs/launcher.log`.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.errors import PsfleetError
from psfleet.job.job import parse_job
from psfleet.platforms.local.launcher import train_resolved
from psfleet.report.schema import Report
from psfleet.run_folder import RunFolder

LOG = "launcher.log"


def main() -> int:
    """Runs the request of stdin; returns the exit code."""
    request = json.loads(sys.stdin.buffer.read())
    answer = _Answer(Path(request["out"]))
    try:
        report = _train(request, answer)
    except PsfleetError as error:
        answer.give(error.exit_code, str(error))
        return error.exit_code
    # A run that is done already has claimed nothing.
    answer.give(errors.DONE)
    return report.exit_code


def _train(request: Mapping[str, Any], answer: _Answer) -> Report:
    return train_resolved(
        parse_job(request["job"]),
        Path(request["program_folder"]),
        out=request["out"],
        program_files={name: base64.b64decode(content) for name, content in request["program_files"].items()},
        fresh=request["fresh"],
        listener=lambda entry: answer.give(errors.DONE),
        paused=request["paused"],
        certificates=None if request["certificates"] is None else Path(request["certificates"]),
    )


class _Answer:
    """The line for the process that waits for it; given once."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._is_given = False

    def give(self, exit_code: int, message: str = "") -> None:
        """Writes the line, and then closes the pipes of this process; later calls do nothing."""
        if self._is_given:
            return
        self._is_given = True
        text = json.dumps({"exit_code": exit_code, "message": message}) + "\n"
        # A caller that was interrupted before does not end the run: see `psfleet.attach`.
        with suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), text.encode())
        log = RunFolder(self._out).path / "logs" / LOG
        target = log if log.parent.is_dir() else Path(os.devnull)
        with target.open("ab") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    sys.exit(main())
