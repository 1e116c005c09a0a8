"""Ctrl-C while the command's modules are imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psfleet as package

IMPORTS = """\
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "psfleet.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from psfleet.__main__ import main
sys.argv = ["psfleet", "--version"]
main()
"""


def ended(prefix: str) -> subprocess.CompletedProcess[str]:
    """A command that gets SIGINT when it imports the command line."""
    return subprocess.run(
        [sys.executable, "-c", prefix + IMPORTS], cwd=Path(package.__file__).parents[1], env=os.environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_signal_ends_a_command_that_is_imported_without_a_traceback() -> None:
    done = ended("")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_command_that_ignores_the_signal_goes_on() -> None:
    """As one that a shell runs in the background."""
    done = ended("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n")
    assert (done.returncode, done.stdout) == (0, f"psfleet {package.__version__}\n")
