"""`python -m psfleet.service.health`: exits 0 if this container's service reports SERVING on its control port, else 1.

For health checks that run a command. Each check starts a Python process, so this module imports little: it reads the
environment itself, because `psfleet.service.settings` imports the job file's schema and takes four times as long.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ADDRESS = "PSFLEET_ADDRESS"
TLS = "PSFLEET_TLS"
FAILURE = "PSFLEET_FAILURE"
"""Names the file in which a process writes why it has failed for good (see `psfleet.service.lasting_failure`)."""
DATA_PORT = "2222"
"""As in `psfleet.addresses`, which a test verifies."""
CREDENTIALS = ("ca.crt", "tls.key", "tls.crt")
SERVICE = "psfleet"
"""As in `psfleet.tls.identity`, which a test verifies."""
PROBE_SECS = 2.0


def control_port(address: str) -> int:
    """The control port of a service at `host:port`; the default port of containers if the text is empty.

    Raises:
        ValueError: The text does not end with a number.
    """
    return int((address or DATA_PORT).rpartition(":")[2]) + 1


def problem(port: int, tls: Path | None = None) -> str:
    """Why the service at a control port of this machine is not healthy; empty if it is healthy.

    Connects to 127.0.0.1, on which every service listens, so that the check does not depend on DNS. With TLS it uses
    the container's own certificate, in the folder `tls`.
    """
    with _channel(f"127.0.0.1:{port}", tls) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            reply = check(health_pb2.HealthCheckRequest(), timeout=PROBE_SECS)
        except grpc.RpcError as error:
            return f"no response on port {port}: {error.details()}"
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return f"port {port} reports {health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)}"


def failure(file: str) -> str:
    """Why the service has failed for good; empty if it has not.

    Args:
        file: Path of the file in which the service writes the cause; empty: there is none.
    """
    try:
        return Path(file).read_text(encoding="utf-8").strip() if file else ""
    except FileNotFoundError:
        return ""


def _channel(target: str, tls: Path | None) -> grpc.Channel:
    options: tuple[tuple[str, str | int], ...] = (("grpc.enable_http_proxy", 0),)
    if tls is None:
        return grpc.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(*((tls / name).read_bytes() for name in CREDENTIALS))
    return grpc.secure_channel(target, credentials, options=(*options, ("grpc.ssl_target_name_override", SERVICE)))


if __name__ == "__main__":
    found = failure(os.environ.get(FAILURE, "")) or problem(
        control_port(os.environ.get(ADDRESS, "")), Path(os.environ[TLS]) if os.environ.get(TLS) else None
    )
    if found:
        sys.exit(found)
