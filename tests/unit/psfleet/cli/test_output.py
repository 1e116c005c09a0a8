"""Commands whose reader ends first, as in `psfleet logs JOB | head -1`, and those without a stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Psfleet

import psfleet as package
from psfleet import platforms
from psfleet.cli.output import NO_READER
from psfleet.report.schema import Report

FULL = Path("/dev/full")


@pytest.fixture
def without_reader() -> Iterator[TextIOWrapper]:
    """A stream into a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the exit code of a run; each run passes as much to its listener as fills every buffer."""

    def prepare(code: int) -> None:
        def run(job: Any, *, listener: Callable[[dict[str, Any]], None], **_: Any) -> Report:
            for number in range(2000):
                listener({"event": "starting", "message": f"entry {number}"})
            status = "failed" if code else "done"
            return Report(status=status, exit_code=code, name="tiny", run="1", mode="sync", target_step=20)

        monkeypatch.setattr(platforms, "train", run)

    return prepare


def test_code_of_a_command_without_a_reader_is_that_of_sigpipe() -> None:
    assert NO_READER == 141


@pytest.mark.parametrize(
    "arguments",
    [
        ["clusterspec", "job.yaml"],
        ["runs", "."],
        ["runs", ".", "--json"],
        ["--version"],
        ["--help"],
        ["render", "compose", "job.yaml"],
    ],
)
def test_a_command_that_prints_ends_without_a_reader_as_other_tools_do(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch, without_reader: TextIOWrapper, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", without_reader)
    said = psfleet(*arguments)
    assert (said.code, said.err) == (NO_READER, "")


@pytest.mark.parametrize("code", [0, 75])
def test_a_run_continues_without_a_reader_and_decides_the_exit_code(
    psfleet: Psfleet,
    monkeypatch: pytest.MonkeyPatch,
    without_reader: TextIOWrapper,
    train: Callable[[int], None],
    code: int,
) -> None:
    train(code)
    monkeypatch.setattr(sys, "stdout", without_reader)
    said = psfleet("train", "job.yaml")
    assert (said.code, said.err) == (code, "")


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_a_run_continues_when_its_progress_cannot_be_written(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch, train: Callable[[int], None]
) -> None:
    train(0)
    with FULL.open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        said = psfleet("train", "job.yaml")
    assert (said.code, said.err) == (0, "")


def test_an_error_keeps_its_exit_code_without_a_reader_of_stderr(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch, without_reader: TextIOWrapper
) -> None:
    monkeypatch.setattr(sys, "stderr", without_reader)
    assert psfleet("train", "nowhere.yaml").code == 64


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_command_that_is_started_without_a_stream_works(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch, train: Callable[[int], None], name: str
) -> None:
    train(0)
    monkeypatch.setattr(sys, name, None)
    assert psfleet("train", "job.yaml").code == 0


def test_the_process_says_nothing_when_it_exits(tmp_path: Path, without_reader: TextIOWrapper) -> None:
    """Python reports what it cannot write at the end, and changes the exit code to 120."""
    done = subprocess.run(
        [sys.executable, "-m", "psfleet", "--version"], cwd=Path(package.__file__).parents[1], env=os.environ,
        stdout=without_reader, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (NO_READER, "")
