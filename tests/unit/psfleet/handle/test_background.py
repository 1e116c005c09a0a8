"""The launcher process of a run whose starter does not wait for its answer any more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from psfleet.errors import BAD_JOB, PsfleetError
from psfleet.handle import starting
from psfleet.handle.starting import MODULE

SECS = 60.0


def test_it_continues_after_its_starter_was_interrupted(tmp_path: Path) -> None:
    """Here to the end of a job that is refused, with the exit code of that."""
    request = {"job": {}, "program_folder": str(tmp_path), "out": str(tmp_path), "program_files": {}}
    options = {"fresh": False, "paused": False, "certificates": None}
    command = [sys.executable, "-P", "-m", MODULE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.close()
        _, problems = launcher.communicate(json.dumps({**request, **options}), SECS)
    assert (launcher.returncode, problems) == (BAD_JOB, "")


def test_a_launcher_that_ends_before_it_has_read_its_request_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "MODULE", "psfleet.handle.missing")
    # More than a pipe holds.
    request = {"program_files": {"program.py": "x" * (1 << 20)}}
    with pytest.raises(PsfleetError, match=r"the launcher ended before it claimed the run folder: .*No module named"):
        starting._launch(request)
