"""Paths, ports and environment of ps, workers and loaders in any container."""

from __future__ import annotations

from collections.abc import Sequence

from psfleet.addresses import CONTROL_OFFSET, DATA_PORT, EXCHANGE_OFFSET, METRICS_OFFSET, TUNNEL_OFFSET, Address
from psfleet.job.job import Job
from psfleet.service import settings

PROGRAM = "/program"
"""The training program's folder; read only."""
OUT = "/out"
"""The run's folder: a volume of the chief, which the other containers mount where the job says that it is shared."""
RECORDS = "/out/.ended"
"""Exit records of containers, for the process that Docker restarts in one (see `psfleet.service.exit_records`).

The volume of a container without the run's folder keeps its record."""
TLS = "/tls"
"""ca.crt, tls.crt and tls.key of the container's role; read only."""
STORE = "/store"
"""Files that the environment names for the client of an object store (docker compose); read only."""
MODEL = "/model"
"""The folder of the model of a fleet that predicts: a mount of the driver; read only."""
SERVICE = "/tmp"
"""The folder of each process of a service, for its signs of life: empty when the container is started again."""
FRONT_FILES = "/out/front"
"""Token, certificate and key of the front of a service; only its user can read them."""
FAILURE = "/tmp/psfleet-failure"
"""File for the cause of a lasting failure, in containers that their engine always starts again (see
`psfleet.service.lasting_failure`)."""
JOB = "/etc/psfleet/job.json"
"""The resolved job, where the environment does not hold it."""

LIFE_CHECK = ("python", "-m", "psfleet.service.life_check")
"""Fails if a process does not renew its file of signs of life, which is the first argument."""

CONTROL_PORT = DATA_PORT + CONTROL_OFFSET
METRICS_PORT = DATA_PORT + METRICS_OFFSET
TUNNEL_PORT = DATA_PORT + TUNNEL_OFFSET
"""That of TensorFlow with `tls: true`."""
EXCHANGE_PORT = DATA_PORT + EXCHANGE_OFFSET
"""Of a ps."""

LOADER = ("/usr/bin/tini", "--", "python", "-m", "worker_service.loader")
"""The process of a loader, in the image of workers."""

USER = 10001
"""User id of the images; any other works too, since only /out and /tmp are written to."""


def environment(job: Job, run: str, ps: Sequence[Address], loaders: Sequence[Address] = ()) -> dict[str, str]:
    """The environment of every ps, worker and loader, without the job, its index and its address."""
    common = {
        settings.RUN: run,
        settings.PS: ",".join(address.data for address in ps),
        settings.PROGRAM_FOLDER: PROGRAM,
        settings.OUT: OUT,
        settings.METRICS_PORT: str(METRICS_PORT),
    }
    if loaders:
        common[settings.LOADERS] = ",".join(address.data for address in loaders)
    return {**common, settings.TLS: TLS} if job.tls else common


def hold(paused: bool) -> dict[str, str]:
    """The chief's variable for a run that is held at the step that it starts from."""
    return {settings.HOLD: settings.HELD_AT_START} if paused else {}
