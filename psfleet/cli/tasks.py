"""`psfleet task`: one process of a fleet in the foreground, on a host of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psfleet.cli.arguments import JobFile, Out, Overrides
from psfleet.control.credentials import read_identity
from psfleet.errors import UsageError
from psfleet.job.job import Job, load_job
from psfleet.launch.task import WORKER_PORT, WORKER_STRIDE, Wanted, environment, task_of
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.processes import command
from psfleet.processes.child import MODULES
from psfleet.run_folder import HOSTS, claimed, default_folder
from psfleet.service import process_environment, settings

Tls = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="With tls: true, the folder ps/ or worker/ that `psfleet certs` made; by default that below "
        "~/.psfleet/certs/NAME.",
    ),
]


def task(
    job: JobFile,
    role: Annotated[str | None, typer.Option(metavar="ps|worker", help="What this process is.")] = None,
    index: Annotated[int | None, typer.Option(help="Its index within the role, from 0; worker 0 is the chief.")] = None,
    ps: Annotated[str | None, typer.Option(metavar="HOST:PORT,...", help="The addresses of all ps, by index.")] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the ps reach this worker; by default on the route to a ps, "
            f"at port {WORKER_PORT} + {WORKER_STRIDE} x index.",
        ),
    ] = None,
    overrides: Overrides = None,
    out: Out = None,
    tls: Tls = None,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port for Prometheus; 0: none.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines instead of text.")] = False,
) -> None:
    """Run one process of a fleet in the foreground; role, index and ps may come from TF_CONFIG."""
    process_environment.require_tensorflow()
    loaded = load_job(job, overrides or ())
    found = task_of(loaded, Wanted(role, index, ps, address), settings.tf_config())
    certificates = _certificates(loaded, found.role, tls)
    read_identity(certificates, found.role)
    folder = out if out is not None else default_folder(loaded.name, HOSTS)
    if found.is_chief:
        # Only to mark the folder as this run's: a chief that replaces this one, on another host, must get it, too.
        with claimed(folder, loaded, fresh=False, platform=HOSTS, keeps=True):
            pass
    variables = environment(loaded, found, job.parent, folder, certificates, metrics_port, not as_json)
    command.become(MODULES[found.role], variables)


def _certificates(job: Job, role: str, folder: Path | None) -> Path | None:
    """The folder with the certificate of the role; None without TLS."""
    if not job.tls:
        if folder is not None:
            raise UsageError("--tls: the job has tls: false, expected tls: true")
        return None
    return folder if folder is not None else certificates_folder(job.name) / role
