"""A process is known by more than its id: not by that of another process that has it later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from psfleet.polling import wait_until
from psfleet.processes.identity import identity, is_alive, send_signal

SECS = 20.0
"""Far more than anything here takes."""


def test_a_process_is_alive_until_it_ends_also_before_its_parent_has_waited_for_it() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    own = identity(process.pid)
    assert own != identity(os.getpid())
    assert is_alive(process.pid, own)
    send_signal(process.pid, own, signal.SIGKILL)
    wait_until(lambda: not is_alive(process.pid, own), SECS, "the process to end")
    process.wait()
    assert identity(process.pid) != own


def test_another_process_with_the_same_id_gets_no_signal() -> None:
    assert not is_alive(os.getpid(), "another boot:1")
    send_signal(os.getpid(), "another boot:1", signal.SIGKILL)
    assert not is_alive(os.getpid(), "")
