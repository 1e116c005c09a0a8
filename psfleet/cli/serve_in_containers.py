"""`psfleet serve --on PLATFORM`: starts a service in containers, and waits until it is ready."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from psfleet.errors import SIGNAL_BASE, UsageError
from psfleet.inference.access import LOOPBACK
from psfleet.job.service_access import FrontOptions, Mode
from psfleet.launch.failed_start import down_command
from psfleet.launch.platform import COMPOSE, KUBERNETES
from psfleet.platforms.choice import platform, require_known
from psfleet.serving.on_platform import serve_on, service_name, service_request
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
    if out is not None:
        raise UsageError(f"--out {out}: expected only without --on; `psfleet logs` shows the logs of containers")
    place = platform(on, context, namespace)
    reads_stores = on == KUBERNETES
    sources = find_models(place, wanted.models, wanted.top, wanted.step, wanted.best, wanted.name, reads_stores)
    options = _in_cluster(wanted.options, service_name(sources)) if on == KUBERNETES else wanted.options
    request = service_request(sources, wanted.mode, wanted.replicas, options, wanted.metrics_port)
    down = down_command(request.job.name, on, context, namespace)
    try:
        is_new = serve_on(place, request, _say, down)
        if on == KUBERNETES and not is_new:
            # Imported here: it needs the kubernetes package.
            from psfleet.platforms.kubernetes.model_copies import copy_newer

            copy_newer(request, context, namespace)
        if request.job.tls and on == COMPOSE:
            # Imported here: it needs the docker package.
            from psfleet.platforms.compose.fleet_labels import renew_certificates

            # Those of a service that was found may expire soon; its processes take over renewed ones.
            renew_certificates(request.job.name)
    except KeyboardInterrupt:
        _say(f"interrupted: what has been started stays. The same command waits for the service, `{down}` ends it.")
        raise typer.Exit(SIGNAL_BASE + signal.SIGINT) from None
    found = f"{url_of(sources.name, options)}, gRPC port {options.grpc_port}"
    if on == KUBERNETES:
        found += f"; Service {request.job.name} {place.where}"
    typer.echo(f"{sources.name} is ready: {found}; `{down}` ends it")


def _in_cluster(options: FrontOptions, service: str) -> FrontOptions:
    """The options of a front whose clients connect to a Service.

    Raises:
        UsageError: There is a host or no token.
    """
    if options.host != LOOPBACK[0]:
        raise UsageError(f"--host {options.host}: expected only without --on {KUBERNETES}, where a Service is made")
    if options.token_file is None:
        raise UsageError(f"--on {KUBERNETES}: all pods of the cluster reach the front, expected --token-file, too")
    return options.model_copy(update={"host": service})


def _say(text: str) -> None:
    typer.echo(text, err=True)
