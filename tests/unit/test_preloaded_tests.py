"""The processes of a parallel test run: forked from one that has imported the tests, or else interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.preloaded_tests import CLIENT, preloaded_tests
from support.rows import first_rows

PRINT = "import sys; print(sys.stdin.read(), 'test_given' in sys.modules)"
TIMEOUT_SECS = 60.0


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Starts an interpreter as pytest-xdist does."""
    arguments = ["-u", "-c", PRINT]
    return subprocess.run([*command, *arguments], input="hello", capture_output=True, text=True, timeout=TIMEOUT_SECS)


def command(path: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(CLIENT), str(path)]


def test_this_process_was_forked_by_that_one_in_a_parallel_run() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("not a parallel run")
    assert b"support.preloaded_tests" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes(), (
        "that process has ended: the tests cannot be imported, or a module runs TensorFlow when it is imported"
    )


def test_without_a_server_an_interpreter_runs_the_program(tmp_path: Path) -> None:
    done = run(command(tmp_path / "nobody"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello False\n", "")


@pytest.mark.parametrize(
    ("content", "is_imported"),
    first_rows([("def test_this(): pass\n", True), ("raise ValueError('not importable')\n", False)]),
)
def test_a_forked_process_has_the_tests_and_the_given_streams(tmp_path: Path, content: str, is_imported: bool) -> None:
    (tmp_path / "test_given.py").write_text(content)
    with preloaded_tests([str(tmp_path), f"--rootdir={tmp_path}", "--confcutdir", str(tmp_path)]) as interpreter:
        done = run(interpreter.split())
        assert (done.returncode, done.stdout, done.stderr) == (0, f"hello {is_imported}\n", "")
