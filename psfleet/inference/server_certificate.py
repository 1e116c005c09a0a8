"""The certificate with which a front proves its name to clients, and its key."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from psfleet.errors import UsageError


@dataclass(frozen=True)
class ServerCertificate:
    """Files in PEM.

    Attributes:
        chain: The certificate, followed by those of intermediate authorities.
        key: Its key, not encrypted.
    """

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For servers of asyncio.

        Raises:
            UsageError: A file cannot be read, or they do not belong together.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # Without the function, OpenSSL asks on the terminal for the password of an encrypted key.
            context.load_cert_chain(self.chain, self.key, password=lambda: "")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UsageError(
                f"--tls-cert {self.chain}, --tls-key {self.key}: {reason}, expected a certificate in PEM and its key "
                "without a password"
            ) from error
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """For servers of gRPC."""
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.chain.read_bytes())])


def server_certificate(chain: str | None, key: str | None) -> ServerCertificate | None:
    """The certificate in two files; None: neither is given.

    Raises:
        UsageError: Only one is given, or as of `ServerCertificate.context`.
    """
    if chain is None or key is None:
        if chain is None and key is None:
            return None
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise UsageError(f"{given} is given without {missing}, expected both or neither")
    found = ServerCertificate(Path(chain), Path(key))
    found.context()
    return found
