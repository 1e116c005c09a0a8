"""The certificate with which a front proves its name to clients, and its key."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from psfleet.errors import UsageError

logger = logging.getLogger("psfleet.front")


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
        """With the files as they are now.

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

    def serving_context(self) -> ssl.SSLContext:
        """For a server of asyncio, whose new connections have the files as they are then; raises as `context`."""
        changes = _Changes(self)
        first = newest = self.context()

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            nonlocal newest
            if (found := changes.taken()) is not None:
                newest = found.context
            connection.context = newest

        # It is called for each connection, with a name or without.
        first.sni_callback = choose
        return first

    def credentials(self) -> grpc.ServerCredentials:
        """For a server of gRPC, whose new connections have the files as they are then; raises as `context`."""
        changes = _Changes(self)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            found = changes.taken()
            return None if found is None else found.configuration

        return grpc.dynamic_ssl_server_credentials(self._read().configuration, fetch)

    def _read(self) -> _Content:
        """Both files; raises as `context`."""
        context = self.context()
        try:
            pair = (self.key.read_bytes(), self.chain.read_bytes())
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror or error}, expected a file in PEM") from error
        return _Content(context, grpc.ssl_server_certificate_configuration([pair]))

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when a file is replaced or written."""
        found = (file.stat() for file in (self.chain, self.key))
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


@dataclass(frozen=True)
class _Content:
    """The content of both files for both servers."""

    context: ssl.SSLContext
    configuration: grpc.ServerCertificateConfiguration


class _Changes:
    """Finds that the files of a certificate have changed. Thread-safe."""

    def __init__(self, files: ServerCertificate) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._state = files._state()

    def taken(self) -> _Content | None:
        """The content of the files if it is new and was not taken yet. One that is not valid is logged, and not used.

        The second file may be replaced later than the first one: until then they do not belong together.
        """
        with self._lock:
            try:
                state = self._files._state()
                if state == self._state:
                    return None
                self._state = state
                found = self._files._read()
                if self._files._state() != state:
                    return None
            except (OSError, UsageError) as error:
                logger.warning("the certificate was not replaced: %s", error)
                return None
        logger.info("new connections have the certificate that was replaced", extra={"event": "certificate"})
        return found


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
