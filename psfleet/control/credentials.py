"""The control plane's channels and ports, plain or with mutual TLS, and which role may call what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from psfleet.errors import BadJobError
from psfleet.service.channel_options import PINGS, RECONNECT

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import CertificateBundle, Identity

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    *RECONNECT,
    # A peer whose address is gone closes nothing: the kernel would send to it again for a quarter of an hour.
    *PINGS,
    ("grpc.enable_http_proxy", 0),
)

_ROLES = frozenset({b"ps", b"worker", b"loader", b"client"})
_WORKER = frozenset({b"worker"})
_WORKER_OR_CLIENT = frozenset({b"worker", b"client"})
CALLERS = {
    "Describe": _WORKER_OR_CLIENT,
    "Configure": _WORKER,
    "Restore": _WORKER,
    "FetchPart": _WORKER,
    "ReleasePart": _WORKER,
    "Join": _WORKER,
    "Heartbeat": _WORKER,
    "ScheduleCheckpoint": _WORKER,
    "ScheduleReductions": _WORKER,
    "ScheduleHold": _WORKER,
    "Finish": _WORKER,
    "Reset": frozenset({b"client"}),
    "Attend": frozenset({b"client"}),
}
"""Roles that may call each method of ShardControl and FleetControl; every role of the same authority may call the
health service."""
RUN_CONTROL, WORKER_CONTROL = "psfleet.control.RunControl", "psfleet.control.WorkerControl"
DRIVER_CONTROL, STUDY_STORAGE = "psfleet.control.DriverControl", "optuna.StorageService"
CALLERS_OF_SERVICES = {
    RUN_CONTROL: _WORKER_OR_CLIENT,
    WORKER_CONTROL: _WORKER,
    DRIVER_CONTROL: _WORKER,
    STUDY_STORAGE: _WORKER,
}
"""Roles that may call all methods of a service."""
SERVICES = ("psfleet.control.ShardControl", "psfleet.control.FleetControl", *CALLERS_OF_SERVICES)
"""The services whose callers are checked."""


def read_identity(folder: Path | None, *roles: str) -> Identity | None:
    """TLS credentials of a process with one of these roles; None without a folder: connections are plain.

    Raises:
        BadJobError: The folder has no valid certificate, or one for another role.
    """
    if folder is None:
        return None
    from psfleet.tls.identity import Identity

    identity = Identity(folder)
    if identity.role not in roles:
        raise BadJobError(f"TLS: {folder} has a certificate for {identity.role}, expected {' or '.join(roles)}")
    return identity


def channel(
    target: str, role: str, identity: Identity | None, more_options: Sequence[tuple[str, int]] = ()
) -> grpc.Channel:
    """A channel to a control port; with an identity, to a peer with a certificate of `role` by the same authority.

    Certificates contain roles instead of host names: the peer may have any host name or address.

    Args:
        more_options: Of gRPC, in addition to those of every channel.
    """
    if identity is None:
        return grpc.insecure_channel(target, options=(*CHANNEL_OPTIONS, *more_options))
    bundle = identity.current()
    credentials = grpc.ssl_channel_credentials(bundle.authority, bundle.key, bundle.certificate)
    options = (
        *CHANNEL_OPTIONS,
        *more_options,
        ("grpc.ssl_target_name_override", role),
        ("grpc.default_authority", role),
    )
    return grpc.secure_channel(target, credentials, options=options)


def add_port(server: grpc.Server, target: str, identity: Identity | None) -> None:
    """Adds a port to a server; with an identity, callers need a certificate of the same authority.

    Raises:
        RuntimeError: The port is in use.
    """
    if identity is None:
        server.add_insecure_port(target)
        return
    served = identity.current()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called before each handshake; None: the configuration is unchanged."""
        nonlocal served
        bundle = identity.current()
        if bundle is served:
            return None
        served = bundle
        return _configuration(bundle)

    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(served), renewed, require_client_authentication=True
    )
    server.add_secure_port(target, credentials)


def _configuration(bundle: CertificateBundle) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(bundle.key, bundle.certificate)], bundle.authority)


class RoleGuard(grpc.ServerInterceptor):
    """Refuses calls to `SERVICES` from roles that may not make them."""

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], details: grpc.HandlerCallDetails
    ) -> Any:
        """Checks the caller's role before the method runs; see grpc.ServerInterceptor."""
        handler = continuation(details)
        service, _, method = details.method.lstrip("/").partition("/")
        if handler is None or service not in SERVICES:
            return handler
        allowed = CALLERS_OF_SERVICES.get(service) or CALLERS.get(method, frozenset())
        kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
        run = getattr(handler, kind)

        def checked(request: Any, context: grpc.ServicerContext) -> Any:
            roles = frozenset(context.auth_context().get("x509_subject_alternative_name", ()))
            if not roles & allowed:
                names = b", ".join(sorted(roles & _ROLES)).decode() or "no role"
                context.abort(grpc.StatusCode.PERMISSION_DENIED, f"a certificate for {names} may not call {method}")
            return run(request, context)

        return getattr(grpc, f"{kind}_rpc_method_handler")(
            checked, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )


def _arity(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"
