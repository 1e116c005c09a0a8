"""TLS credentials of a role, read from a folder: certificate, key and the CA that all peers trust."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from psfleet.errors import BadJobError, DeadlineError
from psfleet.polling import wait_until

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
PS, WORKER, LOADER, CLIENT = "ps", "worker", "loader", "client"
ROLES = (PS, WORKER, LOADER, CLIENT)
"""The roles; `client` is that of the command line."""
SERVICE = "psfleet"
"""Additional name in all certificates but a client's, so that a health check need not know the container's role."""
SETTLE_SECS = 2.0
"""Timeout for matching files while they are replaced one by one."""

logger = logging.getLogger("psfleet")


@dataclass(frozen=True)
class CertificateBundle:
    """Content of the three files as PEM, and role and expiry of the certificate."""

    authority: bytes
    certificate: bytes
    key: bytes
    role: str
    ends: datetime


class Identity:
    """The credentials in a folder, reloaded when its files have changed. Thread-safe.

    Raises:
        BadJobError: The files are missing or do not match each other, or the certificate has expired.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._seen = self._state()
        try:
            bundle = wait_until(lambda: _read(folder), SETTLE_SECS, "a matching key")
        except DeadlineError as error:
            raise BadJobError(f"TLS: {folder / KEY} is not the key of {CERTIFICATE}") from error
        assert bundle is not None, "wait_until returns a true value"
        self._bundle = bundle
        if self._bundle.ends <= datetime.now(UTC):
            expired = f"{self._bundle.ends:%Y-%m-%d %H:%M} UTC"
            raise BadJobError(
                f"TLS: {folder / CERTIFICATE} expired on {expired}, expected a valid one: psfleet certs --renew"
            )

    @property
    def role(self) -> str:
        """The role that the certificate names."""
        return self._bundle.role

    def current(self) -> CertificateBundle:
        """The newest complete credentials; the same object as before if the files are unchanged."""
        with self._lock:
            seen = self._state()
            if seen != self._seen:
                try:
                    bundle = _read(self.folder)
                except BadJobError as error:
                    logger.warning("%s; the previous certificate remains in use", error)
                    bundle = self._bundle
                # None: the files are being replaced; the next call reads them again.
                if bundle is not None:
                    self._seen = seen
                    # A renewal also replaces ca.crt, by the same content.
                    self._bundle = bundle if bundle != self._bundle else self._bundle
            return self._bundle

    def _state(self) -> tuple[tuple[int, int] | None, ...]:
        """Inode and modification time of each file, which change with each replacement, also of a symbolic link."""
        states: list[tuple[int, int] | None] = []
        for name in (AUTHORITY, CERTIFICATE, KEY):
            try:
                stat = (self.folder / name).stat()
            except OSError:
                states.append(None)
            else:
                states.append((stat.st_ino, stat.st_mtime_ns))
        return tuple(states)


def _read(folder: Path) -> CertificateBundle | None:
    """Reads the credentials in a folder; None if certificate and key do not match."""
    try:
        authority, pem, key = ((folder / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY))
        x509.load_pem_x509_certificate(authority)
        certificate = x509.load_pem_x509_certificate(pem)
        matches = load_pem_private_key(key, password=None).public_key() == certificate.public_key()
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise BadJobError(f"TLS: {folder}: {error}, expected {AUTHORITY}, {CERTIFICATE} and {KEY}") from error
    roles = names.get_values_for_type(x509.DNSName)
    role = next((role for role in roles if role in ROLES), None)
    if role is None:
        raise BadJobError(f"TLS: {folder / CERTIFICATE} names {roles}, expected one of {', '.join(ROLES)}")
    return CertificateBundle(authority, pem, key, role, certificate.not_valid_after_utc) if matches else None
