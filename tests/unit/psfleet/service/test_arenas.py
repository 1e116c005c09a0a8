"""A ps takes memory from one arena."""

from __future__ import annotations

import subprocess
import sys

import pytest

from psfleet.service.arenas import VARIABLE, use_one_arena

THREADS_AND_ARENAS = """
import ctypes, tempfile, threading
from psfleet.service.arenas import use_one_arena
assert use_one_arena({})
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
ready = threading.Barrier(5)
def allocate():
    libc.malloc(100_000)
    ready.wait(10)
    ready.wait(10)
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
ready.wait(10)
with tempfile.TemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fdopen(file.fileno(), b"w"))
    assert libc.malloc_info(0, stream) == 0
    libc.fflush(stream)
    file.seek(0)
    print(file.read().count(b"<heap nr="))
ready.wait(10)
for thread in threads:
    thread.join()
"""
"""Prints the number of arenas of a process with five threads that have memory."""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_all_threads_of_a_process_take_memory_from_one_arena() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS_AND_ARENAS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_the_environment_says_how_many_arenas_there_are() -> None:
    assert not use_one_arena({VARIABLE: "4"})
