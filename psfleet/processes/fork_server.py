"""`python -m psfleet.processes.fork_server`: imports TensorFlow once, and forks the processes of a local fleet.

Importing TensorFlow takes 3.5 CPU seconds, a fork of a process that has imported it a hundredth of one. Forking is
sound here because the import leaves no thread but OpenBLAS's, which OpenBLAS itself ends before a fork, and
initialises no device, gRPC channel or random number generator that two processes would then share.

Messages are JSON in frames of `multiprocessing.connection`:

    {"id": 3, "module": "ps_service", "title": "ps 0", "environment": {...}, "folder": "...", "log": "..."}
    {"id": 3, "signal": 15}

and the replies

    {"id": 3, "pid": 71}
    {"id": 3, "code": -15}        as of subprocess.Popen.returncode
    {"id": 3, "refused": "..."}   this server cannot start that process

The server and all its children end with the connection.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.service import process_environment, settings
from psfleet.service.children import PR_SET_NAME
from psfleet.service.library_variables import read_at_start
from psfleet.service.parent import die_with
from psfleet.service.process import STOP_SIGNALS

Request = Mapping[str, Any]

LATE_IMPORTS = ("numpy.random", "numpy.ma", "grpc._channel", "grpc._interceptor", "grpc._server", "grpc.experimental")
"""What NumPy and gRPC import when a function is first called that each service calls."""


def preload(modules: Sequence[str]) -> None:
    """Imports the services of packages, and TensorFlow with them; the garbage collector ignores them from now on.

    A service may have a function `preload`, which prepares what each of its processes would otherwise prepare.

    A module that cannot be imported fails again in the child that needs it, whose log has the reason.
    """
    process_environment.prepare_tensorflow()
    # The collector would scan the growing set of modules again and again: 0.8 of 4.7 CPU seconds.
    gc.disable()
    for module in LATE_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(module)
    for module in modules:
        with suppress(ImportError):
            service = importlib.import_module(f"{module}.service")
            prepare = getattr(service, "preload", None)
            if prepare is not None:
                prepare()
    loopback = sys.modules.get("psfleet.tf.loopback")
    if loopback is not None:
        loopback.find_slots()
    gc.freeze()
    gc.enable()


def serve(connection: Connection) -> Request | None:
    """Forks a process for each request until the launcher closes the connection.

    Returns:
        In the server: None. In a forked process: the request that it has to fulfil (see `become`).
    """
    children: dict[int, int] = {}
    with connection, _ended_children() as ended:
        while True:
            ready = wait([connection, ended])
            if ended in ready:
                ended.recv(4096)
                _report_ended(connection, children)
            if connection not in ready:
                continue
            try:
                message = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                _kill(children)
                return None
            if "signal" in message:
                _signal(children, message)
            elif _fork(connection, children, message):
                return message


def become(request: Request) -> None:
    """Turns a forked process into the one requested, as if `python -P -m module` had started it; ends with it."""
    die_with(int(request["environment"][settings.PARENT]))
    os.setsid()
    os.chdir(request["folder"])
    process_environment.replace_environment(request["environment"])
    # Python reseeds its own `random` after a fork (random.py), NumPy does not.
    np.random.seed()
    _set_title(request["title"])
    sys.argv = [request["module"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _fork(connection: Connection, children: dict[int, int], request: dict[str, Any]) -> bool:
    """Forks a process for a request, or refuses it; returns whether this is the forked process."""
    environment = request["environment"]
    process_environment.prepare_tensorflow(environment)
    differing = sorted({name for name, _ in read_at_start(environment) ^ read_at_start()})
    if differing:
        _reply(connection, request, refused=f"{', '.join(differing)} differ from this server's")
        return False
    environment[settings.PARENT] = str(os.getpid())
    try:
        with ExitStack() as files:
            log = files.enter_context(Path(request["log"]).open("ab"))
            nothing = files.enter_context(Path(os.devnull).open("rb"))
            with _signals_held():
                pid = os.fork()
                if pid == 0:
                    for source, target in ((nothing, 0), (log, 1), (log, 2)):
                        os.dup2(source.fileno(), target)
                    return True
    except OSError as error:
        _reply(connection, request, refused=str(error))
        return False
    children[pid] = request["id"]
    _reply(connection, request, pid=pid)
    return False


@contextmanager
def _signals_held() -> Iterator[None]:
    """Context manager that delays the signals that ask a process to stop until its end.

    A forked Python process discards the signals that arrived before its first instruction (`_PySignal_AfterFork` in
    CPython's signalmodule.c): a Ctrl-C at that moment would be lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal(children: Mapping[int, int], request: Request) -> None:
    """Sends a signal to a child. One that has ended keeps its process id until `_report_ended` waits for it."""
    for pid, identity in children.items():
        if identity == request["id"]:
            os.kill(pid, request["signal"])


def _report_ended(connection: Connection, children: dict[int, int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _reply(connection, {"id": children.pop(pid)}, code=os.waitstatus_to_exitcode(status))


def _reply(connection: Connection, request: Request, **fields: object) -> None:
    # If the launcher has ended, the next read of a request fails.
    with suppress(OSError):
        connection.send_bytes(json.dumps({"id": request["id"], **fields}).encode())


def _kill(children: Mapping[int, int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


@contextmanager
def _ended_children() -> Iterator[socket.socket]:
    """Context manager for a socket that is readable once a child has ended.

    At its end, also in a forked child, SIGCHLD and the wake-up descriptor are as before.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        before = signal.signal(signal.SIGCHLD, lambda number, frame: None), signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before[1])
            signal.signal(signal.SIGCHLD, before[0])


def _set_title(title: str) -> None:
    """Sets what `ps` and `top` show for this process instead of the fork server's command line."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, title.encode())
    # arg_start and arg_end of proc_pid_stat(5): fields 48 and 49; the second field, in brackets, may have spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if end > start:
        text = f"psfleet {title}".encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def run(connection: Connection) -> None:
    """Serves a launcher, then ends; in a forked process: becomes the requested process."""
    request = serve(connection)
    if request is None:
        os._exit(0)
    become(request)


def main() -> None:
    """Serves a launcher. Arguments: its process id, the file descriptor of a socket to it, the services' packages."""
    launcher_pid, descriptor, *modules = sys.argv[1:]
    die_with(int(launcher_pid))
    preload(modules)
    run(Connection(int(descriptor)))


if __name__ == "__main__":
    main()
