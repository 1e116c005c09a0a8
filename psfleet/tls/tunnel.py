"""stunnel processes of a service: one for incoming connections, and one for each peer to which TensorFlow connects."""

from __future__ import annotations

import logging
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Self

from psfleet.errors import BadJobError, DeadlineError, LostPeerError
from psfleet.polling import wait_until
from psfleet.tls.identity import Identity
from psfleet.tls.listeners import is_taken, listeners
from psfleet.tls.route import Route, configuration

PROGRAM = "stunnel4"
START_SECS = 10.0
"""Timeout for a tunnel to listen; it takes 0.03 s on an idle machine."""
WATCH_SECS = 0.5
QUIET_SECS = 60.0
"""Interval in which a message of stunnel is logged once: connections to an absent peer are retried often."""
HOST = re.compile(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?")
RELEVANT = re.compile(r"certificate|CERT|LOG[012]\[|[Bb]ind|alert")
"""Messages about the peer's certificate and about stunnel itself; TensorFlow reports that a peer is absent."""

LINE_START = re.compile(r"^[\d.]+ [\d:]+ LOG\d\[[^]]*\]: ")

logger = logging.getLogger("psfleet.tunnel")


class Tunnels:
    """The tunnels of one process. They are restarted if they exit, and reload renewed certificates. Thread-safe.

    The kernel sends SIGKILL to the stunnel processes when the thread that started them ends, at the latest with the
    service process.

    Raises (from the constructor):
        BadJobError: stunnel is not installed.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._program = _program(PROGRAM)
        self._setpriv = _program("setpriv")
        self._folder = Path(tempfile.mkdtemp(prefix="psfleet-tunnel-"))
        # By the address on which each listens.
        self._tunnels: dict[str, _Tunnel] = {}
        self._lock = threading.Lock()
        # Held while a tunnel is opened or closed, which takes up to `START_SECS`; calls for one that is open pass.
        self._changing = threading.Lock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="tunnels", daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._watcher.join()
        with self._changing, self._lock:
            for tunnel in self._tunnels.values():
                tunnel.kill()
            shutil.rmtree(self._folder)

    def open(self, route: Route) -> None:
        """Starts a tunnel, and stops another one at the same address.

        Raises:
            BadJobError: The address of the route is invalid.
            LostPeerError: stunnel does not start.
        """
        host = route.connect.rpartition(":")[0]
        if not HOST.fullmatch(host):
            raise BadJobError(f"address {route.connect!r}: expected host:port")
        if self._is_open(route):
            return
        with self._changing:
            if self._closing.is_set() or self._is_open(route):
                return
            with self._lock:
                replaced = self._tunnels.pop(route.accept, None)
            if replaced is not None:
                logger.info("%s connects to %s, was %s", route.accept, route.connect, replaced.route.connect)
                replaced.kill()
            file = self._folder / f"{route.accept.replace(':', '_')}.conf"
            file.write_text(configuration(route, self._identity.folder))
            command = [self._setpriv, "--pdeathsig", "KILL", self._program, str(file)]
            tunnel = _Tunnel(route, command)
            tunnel.start()
            tunnel.wait()
            with self._lock:
                self._tunnels[route.accept] = tunnel

    def _is_open(self, route: Route) -> bool:
        with self._lock:
            tunnel = self._tunnels.get(route.accept)
            return tunnel is not None and tunnel.route == route

    def close(self, accept: str) -> None:
        """Stops the tunnel that listens at an address, if there is one."""
        with self._changing:
            with self._lock:
                tunnel = self._tunnels.pop(accept, None)
            if tunnel is not None:
                tunnel.kill()

    def _watch(self) -> None:
        bundle = self._identity.current()
        while not self._closing.wait(WATCH_SECS):
            newest = self._identity.current()
            with self._lock:
                for tunnel in self._tunnels.values():
                    try:
                        tunnel.restart_if_ended()
                    except LostPeerError as error:
                        logger.warning("%s; trying again", error)
                    if newest is not bundle:
                        tunnel.reload()
            if newest is not bundle:
                logger.info("new certificate, valid until %s", f"{newest.ends:%Y-%m-%d %H:%M} UTC")
            bundle = newest


class _Tunnel:
    """One stunnel process."""

    def __init__(self, route: Route, command: list[str]) -> None:
        self.route = route
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._stands_by = False
        self._last_lines: deque[str] = deque(maxlen=3)
        self._logged: dict[str, float] = {}

    def start(self) -> None:
        """Starts the process, with an empty environment, unless another process of this host has this tunnel.

        TensorFlow then connects to that one, and `restart_if_ended` takes its place when it is gone.

        Raises:
            LostPeerError: The machine starts no process at present.
        """
        if self.route.dials and is_taken(self.route.accept):
            if not self._stands_by:
                logger.info("%s is a tunnel of another process of this host", self.route.accept)
            self._stands_by, self._process = True, None
            return
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={},
                text=True,
            )  # fmt: skip
        except OSError as error:
            reason = error.strerror or error
            raise LostPeerError(f"stunnel for port {self.route.port} cannot be started: {reason}") from error
        self._stands_by = False
        assert self._process.stdout is not None, "stdout is a pipe"
        name = f"tunnel-{self.route.port}"
        threading.Thread(target=self._read, args=(self._process.stdout,), name=name, daemon=True).start()

    def wait(self) -> None:
        """Waits until it listens.

        Raises:
            LostPeerError: It ended.
            DeadlineError: It does not listen.
        """
        if self._process is None:
            return
        process, port = self._process, self.route.port

        def ready() -> bool:
            return process.poll() is not None or bool(listeners(port))

        try:
            wait_until(ready, START_SECS, f"stunnel to listen on port {port}", poll_secs=0.01)
        except DeadlineError:
            self.kill()
            raise
        if process.poll() is not None:
            output = "; ".join(self._last_lines)
            raise LostPeerError(f"stunnel for port {port} exited with code {process.returncode}: {output}")

    def restart_if_ended(self) -> None:
        """Restarts the process if it ended, or that of another process of this host."""
        if self._stands_by:
            self.start()
        elif self._process is not None and self._process.poll() is not None:
            code, output = self._process.returncode, "; ".join(self._last_lines)
            logger.warning("stunnel for port %d exited with code %d, restarting it: %s", self.route.port, code, output)
            self.start()

    def reload(self) -> None:
        """Makes it reload the certificates; connections stay open."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """Kills it, and thereby all its connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._log(line.strip())

    def _log(self, line: str) -> None:
        """Keeps a line of output, and logs it if it is relevant and was not logged recently."""
        text = LINE_START.sub("", line)
        self._last_lines.append(text)
        now = time.monotonic()
        if not RELEVANT.search(line) or now - self._logged.get(text, -QUIET_SECS) < QUIET_SECS:
            return
        self._logged[text] = now
        logger.warning("tunnel %s -> %s: %s", self.route.accept, self.route.connect, text)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BadJobError(
            f"tls: true requires {name}, which is not installed (Debian packages stunnel4 and util-linux)"
        )
    return path
