"""The control plane's channels and ports, plain or with mutual TLS, and which role may call what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from psfleet.errors import BadJobError
from psfleet.service.settings import RECONNECT

if TYPE_CHECKING:
    # Not loaded by a fleet without TLS: it takes 80 ms.
    from psfleet.tls.identity import CertificateBundle, Identity

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    *RECONNECT,
    ("grpc.enable_http_proxy", 0),
)

_ROLES = frozenset({b"ps", b"worker", b"client"})
_WORKER = frozenset({b"worker"})
_WORKER_OR_CLIENT = frozenset({b"worker", b"client"})
CALLERS = {
    "Describe": _WORKER_OR_CLIENT,
    "Configure": _WORKER,
    "Join": _WORKER,
    "Heartbeat": _WORKER,
    "ScheduleCheckpoint": _WORKER,
    "Finish": _WORKER,
    "Reset": frozenset({b"client"}),
}
"""Roles that may call each method of ShardControl; any role of the same authority may ask for health."""


def read_identity(folder: Path | None, *roles: str) -> Identity | None:
    """What a process of one of these roles proves itself with; None without a folder: nothing is encrypted.

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


def channel(target: str, role: str, identity: Identity | None) -> grpc.Channel:
    """A channel to a control port; with an identity, only to one that proves `role` under the same authority.

    Certificates name roles, so it does not matter under which host name or address the peer is reached.
    """
    if identity is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    proof = identity.current()
    credentials = grpc.ssl_channel_credentials(proof.authority, proof.key, proof.certificate)
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", role), ("grpc.default_authority", role))
    return grpc.secure_channel(target, credentials, options=options)


def add_port(server: grpc.Server, target: str, identity: Identity | None) -> None:
    """Listens; with an identity, only to callers that have a certificate of the same authority.

    Raises:
        RuntimeError: The port is taken.
    """
    if identity is None:
        server.add_insecure_port(target)
        return
    first = identity.current()
    served: list[CertificateBundle] = [first]

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Asked before each handshake; None: as before."""
        proof = identity.current()
        if proof is served[0]:
            return None
        served[0] = proof
        return _configuration(proof)

    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(first), renewed, require_client_authentication=True
    )
    server.add_secure_port(target, credentials)


def _configuration(proof: CertificateBundle) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(proof.key, proof.certificate)], proof.authority)


class RoleGuard(grpc.ServerInterceptor):
    """Refuses calls to ShardControl from roles that have no business there."""

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], details: grpc.HandlerCallDetails
    ) -> Any:
        """Puts the check before the method; see grpc.ServerInterceptor."""
        handler = continuation(details)
        service, _, method = details.method.lstrip("/").partition("/")
        if handler is None or service != "psfleet.control.ShardControl":
            return handler

        def checked(request: Any, context: grpc.ServicerContext) -> Any:
            roles = frozenset(context.auth_context().get("x509_subject_alternative_name", ()))
            if not roles & CALLERS.get(method, frozenset()):
                told = b", ".join(sorted(roles & _ROLES)).decode() or "no role"
                context.abort(grpc.StatusCode.PERMISSION_DENIED, f"a certificate for {told} may not call {method}")
            return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            checked, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )
