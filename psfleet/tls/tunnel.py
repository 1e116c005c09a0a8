"""stunnel beside a service process: one process for what comes in, one for each peer that TensorFlow dials."""

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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from psfleet.errors import BadJobError, DeadlineError, LostPeerError
from psfleet.polling import wait_until
from psfleet.tls.identity import AUTHORITY, CERTIFICATE, KEY, Identity
from psfleet.tls.listeners import listeners

PROGRAM = "stunnel4"
START_SECS = 10.0
"""Until a tunnel listens; 0.03 on an idle machine."""
WATCH_SECS = 0.5
QUIET_SECS = 60.0
"""A message of stunnel is logged once in this time: a peer that is away is dialled again and again."""
HOST = re.compile(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?")
MATTERS = re.compile(r"certificate|CERT|LOG[012]\[|[Bb]ind|alert")
"""Messages about who is at the other end, and about stunnel itself; that a peer is away is TensorFlow's to say."""

LINE_START = re.compile(r"^[\d.]+ [\d:]+ LOG\d\[[^]]*\]: ")

logger = logging.getLogger("psfleet.tunnel")


@dataclass(frozen=True)
class Route:
    """What one stunnel does.

    Attributes:
        accept: `host:port` where it listens.
        connect: `host:port` where it leads; a name is looked up for each connection.
        peer: The role that the other end must prove.
        dials: Whether TLS is on the way out (to a peer) rather than on the way in.
    """

    accept: str
    connect: str
    peer: str
    dials: bool

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.accept.rpartition(":")[2])


class Tunnels:
    """The tunnels of one process, started again when they die and told when certificates are renewed.

    Safe for use by many threads. The processes get SIGKILL from the kernel when the thread that started them ends:
    with the service process, at the latest.

    Raises (from the constructor):
        BadJobError: stunnel is not there.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._program = _program(PROGRAM)
        self._setpriv = _program("setpriv")
        self._folder = Path(tempfile.mkdtemp(prefix="psfleet-tunnel-"))
        self._tunnels: dict[int, _Tunnel] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="tunnels", daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        self._watcher.join()
        with self._lock:
            for tunnel in self._tunnels.values():
                tunnel.kill()
            shutil.rmtree(self._folder)

    def open(self, route: Route) -> None:
        """Has a tunnel listen; one on the same port that leads elsewhere is replaced.

        Raises:
            BadJobError: The route leads to no address.
            LostPeerError: stunnel does not start.
        """
        host = route.connect.rpartition(":")[0]
        if not HOST.fullmatch(host):
            raise BadJobError(f"address {route.connect!r}: expected host:port")
        with self._lock:
            if self._closing.is_set():
                return
            tunnel = self._tunnels.get(route.port)
            if tunnel is not None and tunnel.route == route:
                return
            if tunnel is not None:
                logger.info("port %d leads to %s now, was %s", route.port, route.connect, tunnel.route.connect)
                tunnel.kill()
            configuration = self._folder / f"{route.port}.conf"
            configuration.write_text(_configuration(route, self._identity.folder))
            command = [self._setpriv, "--pdeathsig", "KILL", self._program, str(configuration)]
            self._tunnels.pop(route.port, None)
            tunnel = _Tunnel(route, command)
            tunnel.start()
            tunnel.wait()
            self._tunnels[route.port] = tunnel

    def _watch(self) -> None:
        proof = self._identity.current()
        while not self._closing.wait(WATCH_SECS):
            newest = self._identity.current()
            with self._lock:
                for tunnel in self._tunnels.values():
                    tunnel.mend()
                    if newest is not proof:
                        tunnel.reload()
            if newest is not proof:
                logger.info("new certificate, valid until %s", f"{newest.ends:%Y-%m-%d %H:%M} UTC")
            proof = newest


class _Tunnel:
    """One stunnel process."""

    def __init__(self, route: Route, command: list[str]) -> None:
        self.route = route
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._last_lines: deque[str] = deque(maxlen=3)
        self._logged: dict[str, float] = {}

    def start(self) -> None:
        """Starts the process; it needs nothing of this one's environment."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={}, text=True
        )
        assert self._process.stdout is not None, "it is a pipe"
        name = f"tunnel-{self.route.port}"
        threading.Thread(target=self._read, args=(self._process.stdout,), name=name, daemon=True).start()

    def wait(self) -> None:
        """Waits until it listens.

        Raises:
            LostPeerError: It does not.
        """
        assert self._process is not None, "start() comes first"
        process, port = self._process, self.route.port

        def ready() -> bool:
            return process.poll() is not None or bool(listeners(port))

        try:
            wait_until(ready, START_SECS, f"stunnel to listen on port {port}", poll_secs=0.01)
        except DeadlineError:
            self.kill()
            raise
        if process.poll() is not None:
            told = "; ".join(self._last_lines)
            raise LostPeerError(f"stunnel for port {port} ended with {process.returncode}: {told}")

    def mend(self) -> None:
        """Starts it again if it ended."""
        if self._process is not None and self._process.poll() is not None:
            code, told = self._process.returncode, "; ".join(self._last_lines)
            logger.warning("stunnel for port %d ended with %d, starting it again: %s", self.route.port, code, told)
            self.start()

    def reload(self) -> None:
        """Has it read the certificates again; connections go on."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """Ends it and all connections through it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._note(line.strip())

    def _note(self, line: str) -> None:
        text = LINE_START.sub("", line)
        self._last_lines.append(text)
        now = time.monotonic()
        if not MATTERS.search(line) or now - self._logged.get(text, -QUIET_SECS) < QUIET_SECS:
            return
        self._logged[text] = now
        logger.warning("tunnel %s -> %s: %s", self.route.accept, self.route.connect, text)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BadJobError(f"tls: true needs {name}, which is not installed (Debian packages stunnel4 and util-linux)")
    return path


def _configuration(route: Route, folder: Path) -> str:
    """The configuration file, see stunnel(8)."""
    host, _, port = route.connect.rpartition(":")
    lines = [
        "foreground = yes",
        "pid =",
        "syslog = no",
        "debug = warning",
        # Small messages go at once; a host that vanished is noticed by the keepalive of the channel inside.
        "socket = l:TCP_NODELAY=1",
        "socket = r:TCP_NODELAY=1",
        "[psfleet]",
        f"client = {'yes' if route.dials else 'no'}",
        f"accept = {route.accept}",
        f"connect = {host.strip('[]')}:{port}",
        # The name is looked up for each connection: a peer may come back with another address.
        "delay = yes",
        "TIMEOUTconnect = 5",
        "TIMEOUTclose = 0",
        f"cert = {folder / CERTIFICATE}",
        f"key = {folder / KEY}",
        f"CAfile = {folder / AUTHORITY}",
        "verifyChain = yes",
        f"checkHost = {route.peer}",
        "sslVersionMin = TLSv1.3",
        # The fastest where the processor knows AES.
        "ciphersuites = TLS_AES_128_GCM_SHA256",
    ]
    return "\n".join(lines) + "\n"
