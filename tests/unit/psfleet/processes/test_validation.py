"""The check of a program by another process: its verdict, its output, its end without a verdict."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.errors import ProgramError, PsfleetError
from psfleet.processes import validation
from psfleet.report.verdict import Verdict


def ends(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str, stderr: str = "") -> None:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)


def test_the_program_is_checked_and_only_its_own_lines_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stderr = "WARNING: All log messages before absl::InitializeLog() is called\nI0000 00:00:17 1 port.cc:1] on.\nmine\n"
    ends(monkeypatch, 0, Verdict(summary="good").model_dump_json() + "\n", stderr)
    assert validation.check_program(sample_job(), Path()) == "good"
    assert capsys.readouterr() == ("", "mine\n")


def test_a_refusal_is_raised_with_its_traceback_and_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, 0, Verdict(error="bad", details="Traceback", exit_code=75).model_dump_json())
    with pytest.raises(ProgramError, match=r"^bad$") as caught:
        validation.check_program(sample_job(), Path())
    assert (caught.value.details, caught.value.exit_code) == ("Traceback", 75)


@pytest.mark.parametrize(
    ("code", "stdout", "message"),
    [(-9, "", "was ended by signal 9"), (1, "{", "exited with 1"), (0, "{}\n{}", "with 0")],
)
def test_a_process_without_a_verdict_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, code: int, stdout: str, message: str
) -> None:
    ends(monkeypatch, code, stdout)
    with pytest.raises(PsfleetError, match=message) as caught:
        validation.check_program(sample_job(), Path())
    assert caught.value.exit_code == 1
