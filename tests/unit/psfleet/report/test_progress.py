"""What the console shows of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rich.console import Console
from support.tiny_job import job

from psfleet.report.progress import callers_console, progress, starting_entry

STARTING = {"event": "starting", "message": "chief: importing TensorFlow"}
STEP = {"event": "progress", "step": 7, "loss": 0.25, "examples_per_sec": 1200.0, "step_secs": 0.1}
TABLE = {"event": "fleet", "message": "2 workers"}
OTHER = {"message": "no event at all"}


def shown(entries: Sequence[Mapping[str, Any]], *, on_terminal: bool) -> str:
    """All that is written to a console, from the start to the last of the entries."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=on_terminal, width=200, soft_wrap=True, color_system=None)
    with progress(console, job()) as listener:
        for entry in entries:
            listener(entry)
    return text.getvalue()


@pytest.mark.parametrize("on_terminal", [True, False])
def test_each_starting_event_is_a_line(on_terminal: bool) -> None:
    lines = [line.strip() for line in shown([STARTING, TABLE, OTHER], on_terminal=on_terminal).splitlines()]
    assert [line for line in lines if "importing TensorFlow" in line]
    assert not [line for line in lines if "2 workers" in line or "no event" in line]


@pytest.mark.parametrize("on_terminal", [True, False])
def test_events_of_a_program_with_the_names_of_psfleets_are_not_shown(on_terminal: bool) -> None:
    own = [{"event": "progress", "percent": 50, "message": "tokenizing"}, {"event": "loaded"}]
    assert "7" in shown([*own, STEP], on_terminal=on_terminal)
    assert "tokenizing" not in shown(own, on_terminal=on_terminal)


def test_the_bar_says_starting_until_the_first_step() -> None:
    assert "tiny: starting" in shown([], on_terminal=True)
    *_, last = [line for line in shown([STARTING, STEP], on_terminal=True).splitlines() if "tiny" in line]
    assert "tiny: starting" not in last
    assert "7/20" in last
    assert "loss 0.25" in last
    assert "1,200 examples/s" in last


@pytest.mark.parametrize("on_terminal", [True, False])
def test_of_several_losses_the_newest_of_each_is_shown(on_terminal: bool) -> None:
    text = shown([{**STEP, "losses": {"critic": 0.25, "actor": 1.5}}], on_terminal=on_terminal)
    assert "loss critic 0.25, actor 1.5" in text


def test_progress_without_a_terminal_is_a_line_each_few_seconds_and_one_at_the_end() -> None:
    lines = shown([STEP, {**STEP, "step": 8}, {**STEP, "step": 20}], on_terminal=False).splitlines()
    assert lines == [
        "step 7 of 20  loss 0.25  1,200 examples/s",
        "step 20 of 20  loss 0.25  1,200 examples/s  0 s left",
    ]


@pytest.mark.parametrize(
    ("fleet", "processes"),
    [
        ({"ps": 1, "workers": 1}, "1 ps and 1 worker"),
        ({"ps": 2, "workers": 3, "spares": 1}, "2 ps, 3 workers and 1 spare"),
        ({"ps": 1, "workers": 2, "ps_addresses": ["a:1"]}, "2 workers on the running ps a:1"),
    ],
)
def test_the_launcher_names_the_processes_that_it_starts(fleet: dict[str, Any], processes: str) -> None:
    entry = starting_entry(job(fleet=fleet))
    assert entry["event"] == "starting"
    assert entry["message"] == f"tiny: starting {processes} (importing TensorFlow takes some seconds)"


class Stream(io.StringIO):
    """A terminal or pipe, which may be broken.

    Attributes:
        num_failures: How many calls have raised.
    """

    def __init__(self, on_terminal: bool, error: Exception | None = None) -> None:
        super().__init__()
        self.num_failures = 0
        self._error = error
        self._on_terminal = on_terminal

    def isatty(self) -> bool:
        return self._on_terminal

    def write(self, text: str) -> int:
        if self._error is not None:
            self.num_failures += 1
            raise self._error
        return super().write(text)


@pytest.mark.parametrize("on_terminal", [True, False])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "EIO"), ValueError("I/O operation on closed file")])
def test_a_caller_whose_stderr_is_closed_or_broken_is_not_ended(
    error: Exception, on_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    broken = Stream(on_terminal, error)
    monkeypatch.setattr(sys, "stderr", broken)
    with progress(callers_console(), job()) as listener:
        for entry in (STARTING, STEP):
            listener(entry)
    assert broken.num_failures > 0


def test_a_caller_without_stderr_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress(callers_console(), job()) as listener:
        listener(STARTING)


def test_what_a_caller_prints_meanwhile_stays_in_the_file_that_stdout_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is on stderr, a terminal."""
    printed, terminal = io.StringIO(), Stream(on_terminal=True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(callers_console(), job()):
        sys.stdout.write("a result\n")
    assert printed.getvalue() == "a result\n"
    assert "starting" in terminal.getvalue()
