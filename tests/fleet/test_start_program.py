"""`psfleet.start(program=...)` with a function of a script, of `python -c` and of stdin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.line_program import DEFINITIONS, job_line
from support.local_fleet import END_SECS, START_SECS
from support.rows import first_rows

SCRIPT = f"""
{DEFINITIONS}
{job_line("started", 40)}
if __name__ == "__main__":
    run = psfleet.start(job, program=build)
    report = run.wait(timeout_secs=60)
    print(report.status, report.final_step, report.eval["loss"] < 1e-3)
"""


@pytest.mark.usefixtures("launches_forked")
@pytest.mark.parametrize(
    "arguments", first_rows([["-"], ["-c", SCRIPT], ["script.py"]]), ids=["stdin", "-c", "a script"]
)
def test_a_function_of_the_caller_is_trained_in_the_background(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *arguments],
        input=SCRIPT if arguments == ["-"] else "",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=START_SECS + END_SECS,
    )
    assert done.stdout.split() == ["done", "40", "True"], done.stderr
    assert (tmp_path / "runs" / "started" / "program" / "stored_program.pkl").exists()
