"""The job and the program that the README shows train as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from psfleet.report.schema import Report

README = Path(__file__).parents[2] / "README.md"


def block(language: str, title: str) -> str:
    """The README's code block of a language that begins with a comment of that title."""
    found: list[str] = re.findall(
        rf"^```{language}\n(# {re.escape(title)}\n.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(found) == 1, f"README.md has {len(found)} {language} blocks that begin with `# {title}`"
    return found[0]


def test_the_readmes_own_model_trains(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(block("yaml", "job.yaml"))
    (tmp_path / "program.py").write_text(block("python", "program.py"))
    command = [sys.executable, "-m", "psfleet", "train", "job.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    report = Report.read(tmp_path / "runs" / "mine")
    assert (report.status, report.final_step) == ("done", 900)
    assert report.eval["accuracy"] > 0.9
