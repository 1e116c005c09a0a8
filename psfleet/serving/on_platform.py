"""A service in containers: planned, started or found, and awaited until it is ready; then it stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from psfleet.driver.on_platform import containers_job
from psfleet.errors import PERMANENT_CODES, LostPeerError, PsfleetError
from psfleet.inference.access import LOOPBACK, clear_text_warning, read_token
from psfleet.inference.server_certificate import server_certificate
from psfleet.job.activity import SERVICE, Activity
from psfleet.job.service_access import FrontOptions, Mode, ServiceAccess
from psfleet.job.service_plan import ServicePlan
from psfleet.launch.failed_start import remove_failed
from psfleet.launch.logs import task_name
from psfleet.launch.platform import Member, Platform, Request, chief_of
from psfleet.launch.up import remove, start
from psfleet.launch.watcher import TakenDownError
from psfleet.manifests.container import FRONT_FILES
from psfleet.plurals import counted
from psfleet.polling import wait_until
from psfleet.service.logs import is_failure, parse_line
from psfleet.serving.platform_sources import PlatformSources
from psfleet.serving.service import different_ports

REST_PORT, GRPC_PORT = 8000, 8001
"""Of the front, in its container."""
ANY_HOST = "0.0.0.0"
"""The address on which it listens there; its machine publishes the ports at the address that the user names."""
TOKEN, CERTIFICATE, KEY = "token", "tls.crt", "tls.key"
"""Names of the front's files."""
MAX_RESTARTS = 5
"""How often a process may be started again before the service is ready."""
FAILURE_LINES = 50
"""Lines at the end of a process's log in which its failure is looked for."""
HEALTHY = "healthy"


def service_name(sources: PlatformSources) -> str:
    """The name of the fleet that serves models."""
    return f"{sources.name}-serve"


def service_request(
    sources: PlatformSources, mode: Mode, replicas: int, options: FrontOptions, metrics_port: int
) -> Request:
    """What a platform is to start.

    Args:
        mode: See `ServiceAccess`.
        replicas: Members of each model.
        options: As for a front on this machine, with files of this machine, and the ports that its users connect to.
        metrics_port: For Prometheus, on loopback; 0: none.

    Raises:
        UsageError: Two ports are the same, a host other than loopback has no token, or a file cannot be read.
        BadJobError: The name of the service, or the job, is not valid for containers.
    """
    different_ports(options, metrics_port)
    token = read_token(options.host, Path(options.token_file) if options.token_file else None)
    files = {TOKEN: token.encode()} if token else {}
    certificate = server_certificate(options.tls_cert, options.tls_key)
    if certificate is not None:
        files |= {CERTIFICATE: certificate.chain.read_bytes(), KEY: certificate.key.read_bytes()}
    inside = options.model_copy(
        update={
            "host": ANY_HOST,
            "published_at": options.host,
            "rest_port": REST_PORT,
            "grpc_port": GRPC_PORT,
            "token_file": _inside(TOKEN, files),
            "tls_cert": _inside(CERTIFICATE, files),
            "tls_key": _inside(KEY, files),
        }
    )
    plan = ServicePlan(
        access=ServiceAccess(
            name=sources.name, front="", num_models=len(sources.models), replicas=replicas, mode=mode, options=inside
        ),
        models=sources.models,
        # Engines publish ports at addresses only.
        host=LOOPBACK[0] if options.host == "localhost" else options.host,
        rest_port=options.rest_port,
        grpc_port=options.grpc_port,
        metrics_port=metrics_port,
    )
    job = containers_job(sources.job, service_name(sources), plan.num_members)
    activity = Activity(
        kind=SERVICE,
        driver="worker_service.front",
        worker="worker_service.member",
        driver_variables={},
        worker_variables={},
        service=plan,
    )
    home = Path(sources.models[0].program_folder)
    return Request(job, home / "job.yaml", activity=activity, front_files=files)


def serve_on(platform: Platform, request: Request, show: Callable[[str], None], down: str) -> bool:
    """Starts a service, or finds the same one, and waits until it is ready; it stays when this returns.

    Args:
        show: Called with each line for the user.
        down: The command that ends the service.

    Returns:
        Whether this call has started the service.

    Raises:
        UsageError: As of `start`.
        TakenDownError: The service was removed meanwhile.
        PsfleetError: A process failed in a way that would recur, again and again, or the service is not ready in time.
            If this call has started the service, it is removed.
    """
    plan = request.activity.service if request.activity is not None else None
    assert plan is not None, "of a service"
    name = request.job.name
    if is_new := start(platform, request):
        show(f"{plan.access.name}: a front and {counted(plan.num_members, 'member')} in containers start")
        if warning := clear_text_warning(plan.host, CERTIFICATE in request.front_files):
            show(warning)
    elif files := request.front_files:
        kept = " and ".join(word for file, word in ((TOKEN, "token"), (CERTIFICATE, "certificate")) if file in files)
        show(f"{plan.access.name}: found, with the {kept} that it was started with")
    deadlines = request.job.deadlines
    reported: set[str] = set()

    def waits(member: Member) -> None:
        if member.problem not in reported:
            reported.add(member.problem)
            show(f"{task_name(member)} waits: {member.problem}")

    try:
        what, secs = f"service {name} to be ready", deadlines.start_secs + deadlines.first_secs
        wait_until(
            lambda: _unready(platform, name, waits),
            secs,
            what,
            done=lambda seen: not seen,
            poll_secs=platform.look_secs,
        )
    except TakenDownError:
        raise
    except PsfleetError as error:
        if is_new:
            remove_failed(partial(remove, platform, name), error, down)
        else:
            error.args = (f"{error}; the service stays, `{down}` ends it",)
        raise
    return is_new


def _inside(name: str, files: dict[str, bytes]) -> str | None:
    return f"{FRONT_FILES}/{name}" if name in files else None


def _unready(platform: Platform, name: str, waits: Callable[[Member], None]) -> str:
    """What is not ready yet; empty if the service is ready.

    Args:
        waits: Called with each member that has a problem.

    Raises:
        PsfleetError: A process failed.
        TakenDownError: The service is gone.
    """
    try:
        members = platform.members(name)
    except LostPeerError as error:
        # The platform does not answer at the moment.
        return str(error)
    front = chief_of(members)
    if front is None:
        raise TakenDownError(name, SERVICE)
    if front.health == HEALTHY:
        return ""
    for member in members:
        _require_no_failure(platform, member)
        if member.problem:
            waits(member)
    return ", ".join(map(_shown, members))


def _shown(member: Member) -> str:
    """A member that is not ready, and why: it does not start, or its last process or the one before has failed."""
    why = member.problem or member.cause or member.note
    return " ".join(filter(None, (task_name(member), member.state, member.health, f"({why})" if why else "")))


def _require_no_failure(platform: Platform, member: Member) -> None:
    if member.problem and member.needs_user:
        raise LostPeerError(f"{task_name(member)} does not start: {member.problem}")
    if not member.restarts and member.exit_code is None:
        return
    last = _last_failure(platform, member)
    if last.get("exit_code") in PERMANENT_CODES:
        error = PsfleetError(f"{task_name(member)} failed: {last['message']}")
        error.exit_code = last["exit_code"]
        raise error
    if member.restarts > MAX_RESTARTS:
        cause = last.get("message") or member.cause or "killed"
        raise LostPeerError(f"{task_name(member)} was started again {member.restarts} times: {cause}")


def _last_failure(platform: Platform, member: Member) -> Mapping[str, Any]:
    """How a process of a member has failed last, as it has logged it; empty: that is not known."""
    try:
        entries = [*filter(None, map(parse_line, platform.log(member, tail=FAILURE_LINES)))]
    except LostPeerError:
        return {}
    return next(filter(is_failure, reversed(entries)), {})
