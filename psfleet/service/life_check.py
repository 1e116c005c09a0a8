"""`python -m psfleet.service.life_check FILE`: exits 0 if the process that renews a file each second is not frozen.

The health check of a container of a service, and the liveness probe of the pod of a driver's worker. It imports little,
because each check starts a Python process.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

START_SECS = 180.0
"""A process that has given no sign of life for so long after its start is frozen, too."""
LOOK_SECS, LOOKS = 0.5, 20
"""A process that gives no sign of life between so many looks is frozen; each gives one a second."""
READY_SECS = 2.0
INIT = Path("/proc/1")
"""tini, which starts with the container and whose child is the process."""


def sign(file: Path) -> int | None:
    """The time of the last sign, in nanoseconds; None: there was none yet."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def running_secs() -> float:
    """How long the container runs; see proc(5)."""
    ticks = int((INIT / "stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def silence(file: Path, start_secs: float, pause: Callable[[float], object] = time.sleep) -> str:
    """Why a process counts as frozen; empty if it does not.

    Signs are compared with each other only, and looks are counted: a step of the machine's clock, or a pause of the
    container together with this check, is no silence.
    """
    first = sign(file)
    if first is None and running_secs() < start_secs:
        return ""
    for _ in range(LOOKS):
        pause(LOOK_SECS)
        if sign(file) != first:
            return ""
    return f"no sign of life for {start_secs if first is None else LOOKS * LOOK_SECS:g} s"


def unreadiness(port: int, has_tls: bool) -> str:
    """Why a front on a port of this container is not ready; empty if it is."""
    # Imported here: it takes half of the time of a check, and only fronts have such a port.
    import http.client
    import ssl

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
    for process in (INIT / "task/1/children").read_text().split():
        os.kill(int(process), signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> str:
    """Checks; returns the problem, or nothing."""
    parser = argparse.ArgumentParser(prog="psfleet.service.life_check")
    parser.add_argument("file", type=Path, help="is renewed each second")
    parser.add_argument("--start-secs", type=float, default=START_SECS, help="until the first sign of life")
    parser.add_argument("--end", action="store_true", help="kill a frozen process: Docker restarts no unhealthy one")
    parser.add_argument("--rest-port", type=int, help="of a front, which is to be ready, too")
    parser.add_argument("--tls", action="store_true", help="that port has TLS")
    given = parser.parse_args(arguments)
    problem = silence(given.file, given.start_secs)
    if problem and given.end:
        end_process()
    if problem or given.rest_port is None:
        return problem
    return unreadiness(given.rest_port, given.tls)


if __name__ == "__main__":
    sys.exit(main() or 0)
