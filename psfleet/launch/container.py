"""What holds for a process of the fleet in any container: where things lie, its ports, what it is told."""

from __future__ import annotations

from psfleet.addresses import DATA_PORT, Address
from psfleet.job.job import Job
from psfleet.service import settings

PROGRAM = "/program"
"""The training program's folder; read only."""
OUT = "/out"
"""The run's folder: one volume that every container of the fleet mounts."""
RECORDS = "/out/.ended"
"""How each container ended, for the process that the engine starts in it again (docker compose)."""
TLS = "/tls"
"""ca.crt, tls.crt and tls.key of the container's role; read only."""
JOB = "/etc/psfleet/job.json"
"""The resolved job, where it is not told as text."""

CONTROL_PORT = DATA_PORT + 1
METRICS_PORT = 2224
TUNNEL_PORT = 2225
"""The only port of the data plane with `tls: true`."""

USER = 10001
"""The images' own user; any other number works, too: nothing in them is written to but /out and /tmp."""


def environment(job: Job, run: str, ps: list[Address]) -> dict[str, str]:
    """What every ps and worker is told, but for the job, its index and its address."""
    told = {
        settings.RUN: run,
        settings.PS: ",".join(address.data for address in ps),
        settings.PROGRAM_FOLDER: PROGRAM,
        settings.OUT: OUT,
        settings.METRICS_PORT: str(METRICS_PORT),
    }
    return {**told, settings.TLS: TLS} if job.tls else told
