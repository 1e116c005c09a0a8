"""Who may use a service, and how: on loopback everyone of the machine, elsewhere who has the token; with TLS or not."""

from __future__ import annotations

import hmac
import math
import resource
from dataclasses import dataclass
from pathlib import Path

from psfleet.errors import UsageError
from psfleet.inference.server_certificate import ServerCertificate, server_certificate
from psfleet.job.service_access import FrontOptions

SCHEME = "Bearer "
MIN_TOKEN_CHARACTERS = 16
MAX_CONNECTIONS = 400
"""By default; both servers' stay below the 1024 open files that a process usually may have."""
OTHER_FILES = 100
"""Open files of a front beside its connections."""
BURST_FILES = 500
"""More of them, while connections beyond the limit are accepted, to be closed."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ClientAccess:
    """Conditions for clients.

    Attributes:
        token: Empty: none is needed.
        certificate: None: connections have no TLS.
        max_connections: Of REST, and as many of gRPC.
    """

    token: str = ""
    certificate: ServerCertificate | None = None
    max_connections: int = MAX_CONNECTIONS


def read_access(options: FrontOptions) -> ClientAccess:
    """The conditions that a front is started with.

    Raises:
        UsageError: As of `read_token`, `server_certificate` and `allow_connections`.
    """
    allow_connections(options.max_connections)
    token = read_token(options.published_at or options.host, Path(options.token_file) if options.token_file else None)
    return ClientAccess(token, server_certificate(options.tls_cert, options.tls_key), options.max_connections)


def allow_connections(number: int) -> None:
    """Raises this process's limit of open files to what the connections of both servers need.

    Raises:
        UsageError: It may not.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (math.inf if each == resource.RLIM_INFINITY else each for each in limits)
    needed = 2 * number + OTHER_FILES
    if hard < needed:
        raise UsageError(
            f"--max-connections {number} needs {needed} open files of the front, which may have {hard} (ulimit -Hn)"
        )
    wanted = min(needed + BURST_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(wanted), limits[1]))


def clear_text_warning(host: str, has_tls: bool) -> str:
    """The warning for a service whose tokens and queries others may read on the network; empty: they cannot."""
    if has_tls or host in LOOPBACK:
        return ""
    return "without --tls-cert, tokens and queries travel in clear text"


def read_token(host: str, file: Path | None) -> str:
    """The token in a file; empty: a service on loopback needs none.

    Raises:
        UsageError: The host is not one of loopback and there is no file; it cannot be read, or is no token.
    """
    if file is None:
        if host not in LOOPBACK:
            raise UsageError(
                f"--host {host} is not one of loopback ({', '.join(LOOPBACK)}), expected --token-file, too"
            )
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--token-file {file}: {reason}, expected a file that can be read") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"--token-file {file} has a token of {len(token)} characters, expected at least {MIN_TOKEN_CHARACTERS} "
            "ASCII characters without spaces"
        )
    return token


def is_allowed(token: str, header: str) -> bool:
    """Whether a header `Authorization` has the token; takes the same time for all wrong ones of a length."""
    if not token:
        return True
    return hmac.compare_digest(header.encode("utf-8", "replace"), f"{SCHEME}{token}".encode())
