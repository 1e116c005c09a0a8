"""A folder with a job, in which the tests run commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import JOB, Psfleet, commands

PROGRAM = """\
import psfleet

def build():
    return psfleet.GraphProgram(loss=len, train=len)
"""


@pytest.fixture
def psfleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Psfleet]:
    """Runs a command in a folder with a job file and its program."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    with commands(monkeypatch, capsys) as run:
        yield run
    sys.modules.pop("program", None)
