"""The table of `psfleet status`."""

from __future__ import annotations

import pytest
from rich.console import Console

from psfleet.cli.status_table import table_of
from psfleet.launch.status import TaskStatus


def test_the_table_is_plain_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    task = TaskStatus("small", "ps", 0, "psfleet-small-ps-0-1", "running", "healthy", 12, 3456.78, 1, "restarted")
    console = Console(force_terminal=False, width=40)
    console.print(table_of(console, [task]), soft_wrap=True, highlight=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2, "a row is a line however narrow the screen is"
    assert lines[1].split() == [
        "small", "ps", "0", "running", "healthy", "12", "3,456.8", "updates/s", "1", "psfleet-small-ps-0-1",
        "restarted",
    ]  # fmt: skip


@pytest.mark.parametrize(("role", "rate"), [("ps", "8.0 updates/s"), ("chief", "8.0 examples/s"), ("tensorboard", "-")])
def test_a_rate_has_its_unit(role: str, rate: str) -> None:
    task = TaskStatus("small", role, 0, "c", "running", rate=None if role == "tensorboard" else 8.0)
    console = Console(force_terminal=True, width=200)
    with console.capture() as capture:
        console.print(table_of(console, [task]))
    assert f" {rate} " in capture.get()


def test_a_terminal_gets_a_table_with_all_columns() -> None:
    console = Console(force_terminal=True, width=200)
    with console.capture() as capture:
        console.print(table_of(console, [TaskStatus("small", "ps", 0, "c", "[70]", last_event="[x]")]))
    assert "[70]" in capture.get(), "no markup"


def test_no_fleet_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=False)
    console.print(table_of(console, []))
    assert capsys.readouterr().out == "no fleet is there\n"
