"""Serves models until a signal comes: locks the folder, watches the processes, and has the front drain at the end."""

from __future__ import annotations

import http.client
import itertools
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from psfleet.errors import UsageError
from psfleet.files import only_user
from psfleet.inference.access import ClientAccess, clear_text_warning, read_access
from psfleet.job.service_access import FrontOptions, Mode
from psfleet.plurals import counted
from psfleet.service.process_environment import require_tensorflow
from psfleet.service.signals import collected_signals
from psfleet.serving.processes import ServiceProcesses
from psfleet.serving.sources import Sources

POLL_SECS = 0.1
"""Interval of looks for dead processes."""
END_SECS = 20.0
"""Until the front, which answers the queries that it has, is killed."""
ANY_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses of all interfaces, and how this machine connects to them."""


def serve(
    sources: Sources, mode: Mode, options: FrontOptions, metrics_port: int, folder: Path, say: Callable[[str], object]
) -> int:
    """Serves until SIGINT or SIGTERM; no process outlives the call.

    Args:
        mode: See `ServiceAccess`.
        folder: Of the logs.
        say: Called with lines for the user.

    Returns:
        The number of the signal.

    Raises:
        UsageError: A port is in use or given twice, another service uses the folder, or the token or the certificate
            is missing or cannot be read.
        PsfleetError: A process failed in a way that would recur.
    """
    require_tensorflow()
    access = read_access(options)
    _require_ports(options, metrics_port)
    received: list[int] = []
    with only_user(folder, "psfleet serve"), collected_signals(received):
        (folder / "logs").mkdir(exist_ok=True)
        processes = ServiceProcesses(sources, mode, options, metrics_port, folder)
        try:
            members = counted(len(sources.members) * sources.replicas, "member")
            say(f"{sources.name}: starting a front and {members} (importing TensorFlow takes some seconds)")
            if warning := clear_text_warning(options.host, access.certificate is not None):
                say(warning)
            processes.start()
            while not received:
                for text in processes.revive():
                    say(text)
                if not processes.was_ready and _is_ready(options, access):
                    processes.was_ready = True
                    url = url_of(sources.name, options)
                    say(f"{sources.name} is ready: {url}, gRPC port {options.grpc_port}")
                threading.Event().wait(POLL_SECS)
            processes.front.signal(signal.SIGTERM)
            until = time.monotonic() + END_SECS
            while processes.front.exit_code() is None and time.monotonic() < until:
                threading.Event().wait(POLL_SECS)
            return received[0]
        finally:
            processes.close()


def url_of(model: str, options: FrontOptions) -> str:
    """The URL of a model."""
    scheme = "http" if options.tls_cert is None else "https"
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{scheme}://{host}:{options.rest_port}/v2/models/{model}"


def _require_ports(options: FrontOptions, metrics_port: int) -> None:
    """Checks that no two ports are the same, and that each is free."""
    for option, port in different_ports(options, metrics_port).items():
        _require_free(option, "127.0.0.1" if option == "--metrics-port" else options.host, port)


def different_ports(options: FrontOptions, metrics_port: int) -> dict[str, int]:
    """The ports of a service, by the options that give them.

    Raises:
        UsageError: Two are the same.
    """
    ports = {"--rest-port": options.rest_port, "--grpc-port": options.grpc_port, "--metrics-port": metrics_port}
    for (one, port), (other, same) in itertools.combinations(ports.items(), 2):
        if port and port == same:
            raise UsageError(f"{one} and {other} are both {port}, expected different ports")
    return ports


def _require_free(option: str, host: str, port: int) -> None:
    if not port:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the servers do: connections of a service that has ended do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"{option} {port} of {host}: {error.strerror or error}, expected a free port") from error


def _is_ready(options: FrontOptions, access: ClientAccess) -> bool:
    host = ANY_HOSTS.get(options.host, options.host)
    if access.certificate is None:
        connection = http.client.HTTPConnection(host, options.rest_port, timeout=1.0)
    else:
        # The certificate has the name that clients use, which may not be this address.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, options.rest_port, timeout=1.0, context=context)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
