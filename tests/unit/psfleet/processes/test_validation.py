"""The check of a program by another process: its verdict, its output, its end without a verdict."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.errors import DeadlineError, ProgramError, PsfleetError
from psfleet.polling import wait_until
from psfleet.processes import validation
from psfleet.report.verdict import Verdict

START = "import os, pathlib, subprocess, sys\nverdict = pathlib.Path(sys.argv[2])\n"
START_SECS = 30.0


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the script that is run instead of the service."""
    popen = subprocess.Popen

    def becomes(script: str) -> None:
        def started(command: list[str], **options: Any) -> Any:
            return popen([sys.executable, "-c", START + script, *command[-2:]], **options)

        monkeypatch.setattr(validation.subprocess, "Popen", started)

    return becomes


def writes(**fields: Any) -> str:
    return f"verdict.write_text({Verdict(**fields).model_dump_json()!r})\n"


def test_only_the_programs_own_lines_are_printed(process: Any, capsys: pytest.CaptureFixture[str]) -> None:
    own = "WARNING: All log messages before absl::InitializeLog() is called\\nI0000 00:00:17 1 port.cc:1] on.\\n"
    process(f"os.write(1, b'{own}mine\\n')\nos.system('echo shell')\n" + writes(summary="good"))
    assert validation.check_program(sample_job(), Path()) == "good"
    assert capsys.readouterr() == ("", "mine\nshell\n")


def test_a_refusal_is_raised_with_its_traceback_and_exit_code(process: Any) -> None:
    process(writes(error="bad", details="Traceback", exit_code=75))
    with pytest.raises(ProgramError, match=r"^bad$") as caught:
        validation.check_program(sample_job(), Path())
    assert (caught.value.details, caught.value.exit_code) == ("Traceback", 75)


@pytest.mark.parametrize(
    ("script", "message"),
    [("os.kill(os.getpid(), 9)", "was ended by signal 9"), ("sys.exit(1)", "exited with 1"), ("", "exited with 0")],
)
def test_a_process_without_a_verdict_is_a_bug(process: Any, script: str, message: str) -> None:
    process(script)
    with pytest.raises(PsfleetError, match=message) as caught:
        validation.check_program(sample_job(), Path())
    assert caught.value.exit_code == 1


def test_what_the_program_has_started_neither_delays_the_verdict_nor_outlives_it(process: Any, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    loader = f"child = subprocess.Popen(['sleep', '600'])\npathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
    process(loader + writes(summary="good") + "os._exit(0)")
    began = time.monotonic()
    assert validation.check_program(sample_job(), Path()) == "good"
    assert time.monotonic() - began < START_SECS
    status = Path("/proc", pid.read_text(), "status")

    def has_ended() -> bool:
        return not status.exists() or "State:\tZ" in status.read_text()

    wait_until(has_ended, START_SECS, "the end of what the program has started")


def test_a_program_that_blocks_is_given_up(process: Any) -> None:
    process("import time\ntime.sleep(600)")
    job = sample_job()
    deadlines = job.deadlines.model_copy(update={"start_secs": 0.5, "first_batch_secs": 0.5, "stall_secs": 0.5})
    with pytest.raises(DeadlineError, match=r"after 1 s waiting for program 'program:build' to be built"):
        validation.check_program(job.model_copy(update={"deadlines": deadlines}), Path())
