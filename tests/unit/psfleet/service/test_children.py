"""What a service has started ends with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from psfleet.polling import wait_until

SECS = 10.0
SERVICE = """\
import multiprocessing, os, signal, subprocess, sys
from psfleet.service.children import end_group_with_this_process

end_group_with_this_process()
loader = multiprocessing.get_context("fork").Process(target=signal.pause)
loader.start()
command = subprocess.Popen(["sleep", "600"])
print(loader.pid, command.pid, flush=True)
if sys.argv[1] == "exits":
    sys.stdin.readline()
    os._exit(7)
try:
    while True:
        os.wait()
except ChildProcessError:
    print("no child is left", flush=True)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open")


@contextmanager
def running(how: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A service that leads a process group, and the processes that it has started."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as service:  # fmt: skip
        try:
            assert service.stdout is not None
            yield service, [int(pid) for pid in service.stdout.readline().split()]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGKILL)


def await_end(pids: list[int]) -> None:
    def left() -> list[int]:
        return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and state(pid) != "Z"]

    wait_until(left, SECS, "the end of the program's processes", done=lambda found: not found)


def state(pid: int) -> str:
    """As in proc_pid_stat(5); Z for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return "Z"


def test_the_children_of_a_service_end_when_it_is_killed() -> None:
    with running("waits") as (service, pids):
        assert len(pids) == 2
        service.kill()
        assert service.wait(SECS) == -signal.SIGKILL
        await_end(pids)


def test_the_children_of_a_service_end_when_it_exits_and_its_code_stays() -> None:
    with running("exits") as (service, pids):
        service.communicate("now\n", timeout=SECS)
        assert service.returncode == 7
        await_end(pids)


def test_a_service_that_waits_for_all_its_children_waits_for_its_own_only() -> None:
    with running("waits") as (service, pids):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        output, _ = service.communicate(timeout=SECS)
        assert output == "no child is left\n"
