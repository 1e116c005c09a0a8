"""The commands of docs/first-day.md, in their order in one folder, print what the page says, but for the numbers.

Training is shorter than on the page: only numbers differ.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.commands import psfleet
from support.documents import ROOT, Document

from psfleet.checkpoint import store
from psfleet.report.schema import Report

PAGE = Document(ROOT / "docs" / "first-day.md")
COMMAND_SECS = 180.0
NUMBER = re.compile(r"\d[\d,.]*")
SHORTER = {"steps: 200": "steps: 20", "train.steps=300": "train.steps=30", "every_steps: 100": "every_steps: 10"}
"""What the page's job and commands have, and what the test runs instead."""


def shown() -> list[tuple[str, list[str]]]:
    """Each command of the page, with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for block in PAGE.blocks():
        if block.text.startswith("$ "):
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    found.append((line.removeprefix("$ "), []))
                else:
                    found[-1][1].append(line)
    return found


@pytest.mark.extended
def test_the_page_is_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, psfleet_here: Psfleet) -> None:
    monkeypatch.chdir(tmp_path)
    for block in PAGE.blocks():
        title = re.match(r"# (\S+\.\w+)\n", block.text)
        if title:
            (tmp_path / title[1]).write_text(shorter(block.text))
    commands = shown()
    assert len(commands) == 6
    assert all(PAGE.text().count(text) == 1 for text in SHORTER)
    for command, expected in commands:
        printed = run(psfleet_here, tmp_path, *shlex.split(shorter(command)))
        assert without_progress(printed) == without_progress("\n".join(expected)), command
    report = Report.read(tmp_path / "runs" / "first")
    assert (report.status, report.final_step, report.gradients.since_step) == ("done", 30, 20)
    newest = store.newest(tmp_path / "runs" / "first" / "checkpoints")
    assert newest is not None
    assert newest.step == 30
    accuracy = float(printed.removeprefix("accuracy "))
    assert accuracy == pytest.approx(report.eval["accuracy"], abs=1e-4), "the page: the accuracy is that of the report"


def shorter(text: str) -> str:
    """A text of the page with fewer steps."""
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


def run(here: Psfleet, folder: Path, program: str, *arguments: str) -> str:
    """Runs a command of the page in a folder, which is the current one; what it prints."""
    if (program, arguments[0]) == ("psfleet", "validate"):
        said = here(*arguments)
        assert said.code == 0, said
        return said.out
    if program == "psfleet":
        done = psfleet(folder, *arguments, timeout_secs=COMMAND_SECS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    assert program == "python"
    printed = io.StringIO()
    with redirect_stdout(printed):
        runpy.run_path(arguments[0], run_name="__main__")
    return printed.getvalue()


def without_progress(text: str) -> list[str]:
    """The lines of a text with N for each number, without the lines of steps, whose number depends on the speed."""
    return [NUMBER.sub("N", line) for line in text.splitlines() if not line.startswith("step ")]
