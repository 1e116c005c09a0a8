"""`psfleet serve`: the models of runs or of the best trials of a study, as a service."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from psfleet.cli.arguments import Context, Namespace, OnMachine
from psfleet.cli.serve_in_containers import Wanted, serve_in_containers
from psfleet.errors import SIGNAL_BASE, UsageError
from psfleet.inference.access import MAX_CONNECTIONS
from psfleet.job.service_access import BETWEEN_GRAPH, MODES, FrontOptions, Mode
from psfleet.platforms.choice import require_no_cluster
from psfleet.serving import sources
from psfleet.serving.service import serve as run_service

NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
MAX_QUERY_BYTES = 64 * 1024 * 1024


def serve(
    models: Annotated[
        list[str], typer.Argument(metavar="RUN... | STUDY", help="Run folders, stores or a study; with --on job files.")
    ],
    top: Annotated[int | None, typer.Option(min=1, help="Of a study: how many of the best trials; 1.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Members of each model, which share its queries.")] = 1,
    members: Annotated[
        str, typer.Option(help="between_graph: each takes queries from its queue; in_graph: one session asks all.")
    ] = BETWEEN_GRAPH,
    step: Annotated[int | None, typer.Option(help="The step of the checkpoint; the newest by default.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best checkpoint by checkpoint.best, not the newest.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Of the model; the job's or the study's by default.")] = None,
    timeout_secs: Annotated[float, typer.Option(min=0.01, max=86400, help="From a query to its answer.")] = 1.0,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    rest_port: Annotated[int, typer.Option(min=1, max=65535, help="The port of REST.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="The port of gRPC.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="The port of Prometheus metrics; 0: none.")] = 0,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The bearer token of clients.")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The certificate of the front in PEM; with it REST and gRPC have TLS."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key of --tls-cert in PEM.")] = None,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections of REST, and as many of gRPC.")
    ] = MAX_CONNECTIONS,
    max_batch_rows: Annotated[int, typer.Option(min=1, help="The largest batch of concurrent queries.")] = 64,
    linger_secs: Annotated[float, typer.Option(min=0, max=86400, help="How long a query waits for others.")] = 0.002,
    max_query_bytes: Annotated[int, typer.Option(min=1, help="The largest message of a query.")] = MAX_QUERY_BYTES,
    out: Annotated[Path | None, typer.Option(help="The folder of the logs; services/<name> by default.")] = None,
    on: OnMachine = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Serve models by the Open Inference Protocol over REST and gRPC; newer checkpoints of the runs replace them."""
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: expected letters, digits, dots, dashes and underscores, a letter first")
    options = FrontOptions(
        host=host,
        rest_port=rest_port,
        grpc_port=grpc_port,
        timeout_secs=timeout_secs,
        max_batch_rows=max_batch_rows,
        linger_secs=linger_secs,
        max_query_bytes=max_query_bytes,
        max_connections=max_connections,
        token_file=_absolute(token_file),
        tls_cert=_absolute(tls_cert),
        tls_key=_absolute(tls_key),
    )
    wanted = Wanted(models, top, step, best, name, replicas, _mode(members), options, metrics_port)
    if on is not None:
        serve_in_containers(wanted, out, on, context, namespace)
        return
    require_no_cluster(context, namespace)
    _serve_here(wanted, out)


def _serve_here(wanted: Wanted, out: Path | None) -> NoReturn:
    """Serves by processes of this machine."""
    if find_spec("aiohttp") is None:
        raise UsageError("aiohttp is not installed, expected the extra: pip install 'psfleet[serve]'")
    found = replace(_sources(wanted), replicas=wanted.replicas)
    folder = out if out is not None else Path("services") / found.name
    number = run_service(
        found, wanted.mode, wanted.options, wanted.metrics_port, folder, lambda text: typer.echo(text, err=True)
    )
    raise typer.Exit(SIGNAL_BASE + number)


def _mode(text: str) -> Mode:
    for mode in MODES:
        if text == mode:
            return mode
    raise UsageError(f"--members {text}: expected one of {', '.join(MODES)}")


def _absolute(file: Path | None) -> str | None:
    return None if file is None else str(file.absolute())


def _sources(wanted: Wanted) -> sources.Sources:
    models, top, step, best, name = wanted.models, wanted.top, wanted.step, wanted.best, wanted.name
    study = sources.study_folder(models[0]) if len(models) == 1 else None
    if study is None:
        if top is not None:
            raise UsageError(f"--top {top}: {models[0]} is no study, expected the folder of one, or no --top")
        return sources.of_runs(models, step, best, name)
    if step is not None or best:
        raise UsageError(f"{models[0]} is a study, expected neither --step nor --best")
    found = sources.of_study(study, top or 1)
    return found if name is None else replace(found, name=name)
