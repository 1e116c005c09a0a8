"""`psfleet serve --on PLATFORM`: starts a service in containers, and waits until it is ready."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from psfleet.cli.arguments import option_words
from psfleet.errors import SIGNAL_BASE, UsageError
from psfleet.job.service_access import FrontOptions, Mode
from psfleet.launch.platform import COMPOSE, KUBERNETES
from psfleet.platforms.choice import platform, require_known, require_no_cluster
from psfleet.serving.on_platform import serve_on, service_request
from psfleet.serving.platform_sources import find_models
from psfleet.serving.service import url_of


@dataclass(frozen=True)
class Wanted:
    """What the arguments of `psfleet serve` ask for; see there."""

    models: Sequence[str]
    top: int | None
    step: int | None
    best: bool
    name: str | None
    replicas: int
    mode: Mode
    options: FrontOptions
    metrics_port: int


def serve_in_containers(wanted: Wanted, out: Path | None, on: str, context: str | None, namespace: str | None) -> None:
    """Returns when the service is ready, which serves until `psfleet down`."""
    require_known(on)
    if on == KUBERNETES:
        raise UsageError(f"--on {on}: services run on {COMPOSE} or, without --on, on this machine, expected either")
    require_no_cluster(context, namespace)
    if out is not None:
        raise UsageError(f"--out {out}: expected only without --on; `psfleet logs` shows the logs of containers")
    # Imported here: it needs the docker package.
    from psfleet.platforms.compose.fleet_labels import renew_certificates

    place = platform(on)
    sources = find_models(place, wanted.models, wanted.top, wanted.step, wanted.best, wanted.name)
    request = service_request(sources, wanted.mode, wanted.replicas, wanted.options, wanted.metrics_port)
    down = shlex.join(["psfleet", "down", request.job.name, *option_words({"--on": on})])
    try:
        serve_on(place, request, _say)
        if request.job.tls:
            # Those of a service that was found may expire soon; its processes take over renewed ones.
            renew_certificates(request.job.name)
    except KeyboardInterrupt:
        _say(f"interrupted: what has been started stays. The same command waits for the service, `{down}` ends it.")
        raise typer.Exit(SIGNAL_BASE + signal.SIGINT) from None
    url = url_of(sources.name, wanted.options)
    typer.echo(f"{sources.name} is ready: {url}, gRPC port {wanted.options.grpc_port}; `{down}` ends it")


def _say(text: str) -> None:
    typer.echo(text, err=True)
