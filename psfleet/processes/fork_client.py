"""Starts the processes of a local fleet: forked by a fork server on Linux, or else each in a new interpreter."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from psfleet.processes.command import Command, Process
from psfleet.service import process_environment, settings

logger = logging.getLogger("psfleet.launch")

SERVER = "psfleet.processes.fork_server"
KILL_SECS = 3.0
"""How long a server may take to kill a process, or to end by itself, before it is killed with all its processes."""


class Forked:
    """A process that a fork server forks; started in a new interpreter if the server refuses, or dies before the fork.

    Attributes:
        pid: Process id; 0 before the process is forked.
        is_killed: Whether it was sent SIGKILL.
    """

    def __init__(self, server: ForkServer, identity: int, command: Command) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self._server = server
        self._identity = identity
        self._command = command
        self._alone: subprocess.Popen[bytes] | None = None
        # Signals for a process that is yet to be forked, in case it is started alone.
        self._early_signals: list[int] = []
        self.is_killed = False

    def poll(self) -> int | None:
        """Its exit code, -n if signal n ended it; None while it runs."""
        self._server.read()
        if self._alone is not None:
            self.returncode = self._alone.poll()
        return self.returncode

    def wait(self) -> int:
        """Waits for its end; its exit code.

        A process that was sent SIGKILL must end in `KILL_SECS`: otherwise the server does not respond, and is killed.
        """
        deadline = time.monotonic() + KILL_SECS
        while (code := self.poll()) is None:
            if self._alone is not None:
                self._alone.wait()
            elif not self.is_killed:
                self._server.read(timeout_secs=None)
            elif self._server.is_useless():
                self._server.kill()
            elif (left_secs := deadline - time.monotonic()) > 0:
                self._server.read(left_secs)
            else:
                self._server.kill()
        return code

    def send_signal(self, sig: int, /) -> None:
        """Sends a signal, if it still runs; to a process that is yet to be forked, as soon as it is."""
        if self.poll() is not None:
            return
        if self._alone is not None:
            self._alone.send_signal(sig)
            return
        self.is_killed = self.is_killed or sig == signal.SIGKILL
        if not self.pid:
            self._early_signals.append(sig)
        self._server.send({"id": self._identity, "signal": int(sig)})

    def apply(self, reply: Mapping[str, Any]) -> None:
        """Applies a reply of the server; see `fork_server` for its fields."""
        if "refused" in reply:
            self._start_alone(reply["refused"])
        self.pid = reply.get("pid", self.pid)
        self.returncode = reply.get("code", self.returncode)

    def lose_server(self) -> None:
        """Applies the server's death, which has killed every process that it had forked."""
        if self.pid or self.is_killed:
            self.returncode = -signal.SIGKILL
        else:
            self._start_alone("it ended")

    def _start_alone(self, cause: str) -> None:
        logger.info("the fork server does not start %s: %s; starting it alone", self._command.title, cause)
        self._alone = self._command.start_alone()
        self.pid = self._alone.pid
        for number in self._early_signals:
            self._alone.send_signal(number)


class ForkServer:
    """The launcher's connection to a fork server; closed when the last of the server's processes has ended.

    Used by one thread only: the kernel ends the server with the thread that started it (prctl(2), PR_SET_PDEATHSIG).
    """

    _has_replied = False

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes] | None = None) -> None:
        self.is_open = True
        self._connection = connection
        self._process = process
        self._identities = count()
        self._forked: dict[int, Forked] = {}

    @classmethod
    def start(cls, modules: Sequence[str]) -> ForkServer:
        """Starts a server that imports the services of these packages, and serves requests once it has."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", SERVER, str(os.getpid()), str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=process_environment.for_child({}), start_new_session=True,
            )  # fmt: skip
        return cls(Connection(ours.detach()), process)

    @classmethod
    def connect(cls, path: Path) -> ForkServer:
        """Connects to a running server.

        Raises:
            OSError: No server listens at this Unix socket.
        """
        connection = Client(str(path), "AF_UNIX")
        assert isinstance(connection, Connection)
        return cls(connection)

    def fork(self, command: Command) -> Forked:
        """Has the server fork a process."""
        identity = next(self._identities)
        process = self._forked[identity] = Forked(self, identity, command)
        self.send(
            {
                "id": identity,
                "module": command.module,
                "title": command.title,
                "environment": dict(command.environment),
                "folder": os.getcwd(),
                "log": str(command.log.absolute()),
            }
        )
        return process

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a request."""
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            self._lose()

    def read(self, timeout_secs: float | None = 0.0) -> None:
        """Reads the replies that have arrived; without any, waits for one. None: without a timeout."""
        while self.is_open and self._connection.poll(timeout_secs):
            timeout_secs = 0.0
            try:
                reply = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                self._lose()
                return
            self._has_replied = True
            process = self._forked[reply["id"]]
            process.apply(reply)
            if "pid" not in reply:
                del self._forked[reply["id"]]
            if not self._forked:
                self._close()

    def is_useless(self) -> bool:
        """Whether it has not forked yet, because it imports TensorFlow, and all requested processes were killed."""
        return not self._has_replied and all(process.is_killed for process in self._forked.values())

    def kill(self) -> None:
        """Kills the server, and every process that it has forked with it."""
        if self._process is None:
            # A server that this launcher only connected to: it ends its processes for a connection with the connection.
            self._lose()
            return
        self._process.kill()
        self._process.wait()

    def _lose(self) -> None:
        """Closes the connection to a server that is dead or is to be left, and applies that to its processes."""
        if not self.is_open:
            return
        self._close()
        for process in self._forked.values():
            process.lose_server()
        self._forked.clear()

    def _close(self) -> None:
        self.is_open = False
        # shutdown, not only close: a process that the launcher forked meanwhile has a copy of this descriptor.
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end, suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(KILL_SECS)
            except subprocess.TimeoutExpired:
                self.kill()


_of_thread = threading.local()


def start(command: Command, modules: Sequence[str]) -> Process:
    """Starts a process: forked from this thread's fork server where that works, or else alone.

    Args:
        command: The process.
        modules: The packages whose services the fork server imports before it forks.
    """
    wanted = settings.fork_server()
    if sys.platform != "linux" or wanted == settings.NO_FORK_SERVER:
        return command.start_alone()
    server: ForkServer | None = getattr(_of_thread, "server", None)
    if server is None or not server.is_open:
        try:
            server = ForkServer.connect(Path(wanted)) if wanted else ForkServer.start(modules)
        except OSError as error:
            logger.info("cannot use a fork server (%s): %s; starting %s alone", wanted or "own", error, command.title)
            return command.start_alone()
        _of_thread.server = server
    return server.fork(command)
