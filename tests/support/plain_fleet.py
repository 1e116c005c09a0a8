"""One ps and one worker by `docker run` alone, for tests of images: no launcher is involved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psfleet.addresses import DATA_PORT, Address
from psfleet.job.job import Job
from psfleet.manifests.container import environment
from psfleet.report.schema import Report
from psfleet.service.settings import INDEX, JOB
from support.images import PS_IMAGE, Container, container, network, shell, volume

TRAIN_SECS = 180.0
"""From the start of both containers to their ends; about 15 on an idle machine with 2 cores."""
PS_NAME = "ps-0"


@dataclass(frozen=True)
class PlainFleet:
    """Both containers, and the volume that they share."""

    ps: Container
    worker: Container
    volume: str

    def report(self) -> Report:
        """What the run left, once both have ended."""
        text = shell(PS_IMAGE, "cat /out/report.json", "--volume", f"{self.volume}:/out:ro")
        return Report.model_validate_json(text)

    def files(self, folder: str) -> list[str]:
        """What lies in a folder of the run, and below."""
        script = f"find /out/{folder} -type f"
        return shell(PS_IMAGE, script, "--volume", f"{self.volume}:/out:ro").split()


@contextmanager
def training(job: Job, worker_image: str, *worker_options: str) -> Iterator[PlainFleet]:
    """Starts a ps, and a worker from an image, on a network of their own without a way out."""
    address = Address(PS_NAME, DATA_PORT)
    variables = {**environment(job, f"{job.name}-1", [address]), JOB: job.model_dump_json(), INDEX: "0"}
    with network("--internal") as net, volume() as out:
        shared = ("--network", net, "--volume", f"{out}:/out")
        ps_options = ("--hostname", PS_NAME, "--network-alias", PS_NAME)
        with (
            container(PS_IMAGE, *shared, *ps_options, environment=variables) as ps,
            container(worker_image, *shared, *worker_options, environment=variables) as worker,
        ):
            yield PlainFleet(ps, worker, out)
