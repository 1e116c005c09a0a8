"""A client's script in a container: it ends with its command, whose stdin stays open as long as `psfleet run` lives."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SECS = 30.0
STARTS = "import sys, time\nprint('starts', flush=True)\n"

Attended = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def attended(tmp_path: Path) -> Iterator[Attended]:
    """Runs a script with an open stdin."""
    started = []

    def run(text: str) -> subprocess.Popen[str]:
        script = tmp_path / "client.py"
        script.write_text(text)
        command = [sys.executable, "-m", "psfleet.processes.attended", str(script), "word"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        with process:
            pass


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_output_arguments_and_exit_code_are_the_scripts(attended: Attended) -> None:
    process = attended("import sys\nprint(sys.argv[1:])\nprint('error', file=sys.stderr)\nsys.exit(7)\n")
    assert process.wait(SECS) == 7
    assert process.stdout is not None
    assert process.stderr is not None
    assert (process.stdout.read(), process.stderr.read()) == ("['word']\n", "error\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(attended: Attended, number: signal.Signals) -> None:
    process = attended(
        "import signal, sys\nfor number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, lambda number, _: sys.exit(100 + number))\n" + STARTS + "time.sleep(100)\n"
    )
    assert line(process) == "starts\n"
    process.send_signal(number)
    assert process.wait(SECS) == 100 + number


def test_a_script_that_a_signal_ends_has_the_code_of_that_signal(attended: Attended) -> None:
    process = attended("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert process.wait(SECS) == 128 + signal.SIGKILL


def test_a_script_that_ignores_the_end_of_its_command_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{STARTS}time.sleep(100)\n")
    program = (
        "import sys\nfrom psfleet.processes import attended\nattended.GRACE_SECS = 0.2\n"
        f"sys.exit(attended.run([sys.executable, {str(script)!r}], lambda: attended.await_eof(0)))"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert line(process) == "starts\n"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(SECS) == 128 + signal.SIGKILL


def test_a_script_ends_when_nobody_holds_its_stdin_any_more(attended: Attended) -> None:
    process = attended(STARTS + "time.sleep(100)\n")
    assert line(process) == "starts\n"
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(SECS) == 128 + signal.SIGTERM
