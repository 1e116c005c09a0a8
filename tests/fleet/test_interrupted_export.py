"""`psfleet export` that is ended by a signal while its process builds the model."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support import commands
from support.exported_run import trained

from psfleet.polling import wait_until

START_SECS = 60.0
"""Until the process of an export builds the model."""
BLOCKED = """
import os, pathlib, threading

def keras_program():
    pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
    threading.Event().wait()
"""


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    trained(tmp_path)
    (tmp_path / "versioned_program.py").write_text(BLOCKED)
    screen, file = tmp_path / "screen", tmp_path / "pid"
    command = commands.started("psfleet", "export", ".", "--out", "served", folder=tmp_path, out=screen, err=screen)
    wait_until(lambda: file.exists() and file.read_text(), START_SECS, "the process of the export")
    command.send_signal(number)
    assert command.wait() == 128 + number, screen.read_text()
    assert not Path("/proc", file.read_text()).exists()
    assert not (tmp_path / "served").exists()
