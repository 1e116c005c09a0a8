"""Children of a benchmark: waiting for several, whichever ends first."""

from __future__ import annotations

import sys

import pytest

from benchmarks.children import ChildError, Children

SECS = 60.0


def exits(code: int) -> list[str]:
    """A program that exits as soon as a line is sent to it."""
    return [sys.executable, "-c", f"input(); raise SystemExit({code})"]


def test_children_may_end_in_another_order_than_that_in_which_they_are_waited_for() -> None:
    with Children() as children:
        first, second = (children.start(name, exits(0)) for name in ("first", "second"))
        children.send(second, "end")
        second.process.wait(SECS)
        children.send(first, "end")
        for child in (first, second):
            children.wait(child, "its end", SECS)
        assert children.pids() == [first.process.pid, second.process.pid]


def test_a_child_that_fails_is_an_error_with_its_exit_code() -> None:
    with Children() as children:
        child = children.start("first", exits(3))
        children.send(child, "end")
        with pytest.raises(ChildError, match="first ended with exit code 3 during its end"):
            children.wait(child, "its end", SECS)
