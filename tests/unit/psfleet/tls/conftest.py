"""Tunnels with a stub for stunnel that only listens; one to `slow...` once a test has opened and closed its gate.

No name of a host is known.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from psfleet.service.host_routes import is_here
from psfleet.tls import certificates, data_plane, tunnel
from psfleet.tls.identity import Identity
from psfleet.tls.tunnel import Tunnels

STAND_IN = """\
#!{python} -SE
import os, signal, socket, sys
path = sys.argv[1]
options = dict(line.split(" = ", 1) for line in open(path).read().splitlines() if " = " in line)
host, _, port = options["accept"].rpartition(":")
def reload(*_):
    open({reloads!r}, "a").write(port + "\\n")
signal.signal(signal.SIGHUP, reload)
if options["connect"].startswith("broken"):
    sys.exit("2026.11.20 19:26:54 LOG3[ui]: Line 7: cannot work")
if options["connect"].startswith("slow"):
    open({gate!r}).read()
listening = socket.create_server((host, int(port)))
open({pids!r}, "a").write(f"{{port}} {{os.getpid()}}\\n")
print("2026.11.20 19:26:54 LOG3[0]: s_connect: connect 1.2.3.4:2225: Connection refused (111)", flush=True)
for _ in range(2):
    print("2026.11.20 19:26:54 LOG4[1]: Rejected by CERT at depth=0: CN=psfleet client", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(autouse=True)
def unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is looked up, and none is that of this machine."""
    monkeypatch.setattr(data_plane, "is_here", lambda host: host[0].isdecimal() and is_here(host))


@pytest.fixture
def reloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-in in stunnel's place; the file gets a line for each reload. Beside it is the gate."""
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / tunnel.PROGRAM
    os.mkfifo(tmp_path / "gate")
    files = {"gate": str(tmp_path / "gate"), "reloads": str(tmp_path / "reloads"), "pids": str(tmp_path / "pids")}
    script.write_text(STAND_IN.format(python=sys.executable, **files))
    script.chmod(0o755)
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    (programs / "setpriv").symlink_to(setpriv)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(tunnel, "WATCH_SECS", 0.02)
    return tmp_path / "reloads"


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    certificates.make(tmp_path / "certs")
    return Identity(tmp_path / "certs" / "ps")


@pytest.fixture
def tunnels(reloads: Path, identity: Identity) -> Iterator[Tunnels]:
    with Tunnels(identity) as made:
        yield made
