"""`python -m psfleet.service.life_check FILE`: exits 0 if the process that renews a file each second is not frozen.

The health check of a container of a service. It imports little, because each check starts a Python process.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

SILENT_SECS = 10.0
"""A process without a sign of life for so long is frozen; each gives one a second."""
LOOK_SECS = 3.0
"""How long the check waits for one more sign: after a pause of the container the file is old, too."""
READY_SECS = 2.0
CHILDREN = Path("/proc/1/task/1/children")
"""The process of the container, whose parent is tini."""


def age(file: Path) -> float | None:
    """Seconds since the last sign; None: there was none yet."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return None


def silence(file: Path, pause: Callable[[float], object] = time.sleep) -> str:
    """Why a process counts as frozen; empty if it does not."""
    first = age(file)
    if first is None or first < SILENT_SECS:
        return ""
    pause(LOOK_SECS)
    again = age(file)
    return "" if again is None or again < LOOK_SECS else f"no sign of life for {again:.0f} s"


def unreadiness(port: int, has_tls: bool) -> str:
    """Why a front on a port of this container is not ready; empty if it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_SECS)
    if has_tls:
        # The certificate has the name that clients use.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=READY_SECS, context=context)
    try:
        connection.request("GET", "/v2/health/ready")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"no answer on port {port}: {error}"
    finally:
        connection.close()
    return "" if status == http.client.OK else "no member is ready"


def end_process() -> None:
    """Kills the process of this container, which its engine starts again."""
    for process in CHILDREN.read_text().split():
        os.kill(int(process), signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> str:
    """Checks; returns the problem, or nothing."""
    parser = argparse.ArgumentParser(prog="psfleet.service.life_check")
    parser.add_argument("file", type=Path, help="is renewed each second")
    parser.add_argument("--end", action="store_true", help="kill a frozen process: Docker restarts no unhealthy one")
    parser.add_argument("--rest-port", type=int, help="of a front, which is to be ready, too")
    parser.add_argument("--tls", action="store_true", help="that port has TLS")
    given = parser.parse_args(arguments)
    problem = silence(given.file)
    if problem and given.end:
        end_process()
    if problem or given.rest_port is None:
        return problem
    return "no sign of life yet" if age(given.file) is None else unreadiness(given.rest_port, given.tls)


if __name__ == "__main__":
    sys.exit(main() or 0)
