"""The commands of docs/first-day.md, in their order in one folder, print what the page says, but for the numbers."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from support.documents import ROOT, Document

PAGE = Document(ROOT / "docs" / "first-day.md")
COMMAND_SECS = 180.0
NUMBER = re.compile(r"\d[\d,.]*")
PROGRAMS = {"python": [sys.executable], "psfleet": [sys.executable, "-m", "psfleet"]}


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


def test_the_page_is_as_it_says(tmp_path: Path) -> None:
    for block in PAGE.blocks():
        title = re.match(r"# (\S+\.\w+)\n", block.text)
        if title:
            (tmp_path / title[1]).write_text(block.text)
    commands = shown()
    assert len(commands) == 6
    for command, expected in commands:
        program, *arguments = shlex.split(command)
        done = subprocess.run(
            [*PROGRAMS[program], *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert without_progress(done.stdout) == without_progress("\n".join(expected)), command


def without_progress(text: str) -> list[str]:
    """The lines of a text with N for each number, without the lines of steps, whose number depends on the speed."""
    return [NUMBER.sub("N", line) for line in text.splitlines() if not line.startswith("step ")]
