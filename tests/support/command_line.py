"""Runs the command line in this process, and captures its output and exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from psfleet.cli import main

JOB = """\
name: tiny
program: program:build
fleet: {ps: 1, workers: 2, spares: 1}
optimizer: {name: sgd, learning_rate: 0.1}
train: {steps: 20, batch_size: 4}
"""


@dataclass(frozen=True)
class Said:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Psfleet = Callable[..., Said]
"""Runs a command of these arguments."""


@contextmanager
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Psfleet]:
    """Runs commands in the current folder; each sets up logs, which are as before after the block."""
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["psfleet", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.main()
        code = caught.value.code
        assert isinstance(code, int)
        return Said(code, *capsys.readouterr())

    yield run
    root.handlers[:], root.level = before
