"""What a process proves its role with: certificate, key and the authority that all peers trust, read from a folder."""

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
PS, WORKER, CLIENT = "ps", "worker", "client"
"""The roles; `client` is the command line's."""
SERVICE = "psfleet"
"""Also named by the certificate of a ps or worker: a container's health check need not know which of them it asks."""
SETTLE_SECS = 2.0
"""How long files may take to fit each other while they are replaced one by one."""

logger = logging.getLogger("psfleet")


@dataclass(frozen=True)
class CertificateBundle:
    """The content of the three files, PEM, and the role that the certificate names."""

    authority: bytes
    certificate: bytes
    key: bytes
    role: str
    ends: datetime


class Identity:
    """The proof in a folder, read again when its files have changed. Safe for use by many threads.

    Raises:
        BadJobError: The files are not there, do not fit each other, or the certificate has ended.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._seen = self._look()
        try:
            proof = wait_until(lambda: _read(folder), SETTLE_SECS, "a key that fits")
        except DeadlineError as error:
            raise BadJobError(f"TLS: {folder / KEY} is not the key of {CERTIFICATE}") from error
        assert proof is not None, "wait_until checked it"
        self._proof = proof
        if self._proof.ends <= datetime.now(UTC):
            ended = f"{self._proof.ends:%Y-%m-%d %H:%M} UTC"
            raise BadJobError(
                f"TLS: {folder / CERTIFICATE} ended on {ended}, expected a valid one: psfleet certs --renew"
            )

    @property
    def role(self) -> str:
        """Whose certificate it is."""
        return self._proof.role

    def current(self) -> CertificateBundle:
        """The newest whole proof; the same object as before if nothing has changed."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                try:
                    proof = _read(self.folder)
                except BadJobError as error:
                    logger.warning("%s; the former certificate stays in use", error)
                    proof = self._proof
                # None: they are being replaced at this moment, and looked at again next time.
                if proof is not None:
                    self._seen, self._proof = seen, proof
            return self._proof

    def _look(self) -> tuple[tuple[int, int] | None, ...]:
        """Changes with every file that is replaced, also behind Kubernetes' symbolic links."""
        found: list[tuple[int, int] | None] = []
        for name in (AUTHORITY, CERTIFICATE, KEY):
            try:
                stat = (self.folder / name).stat()
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_ino, stat.st_mtime_ns))
        return tuple(found)


def _read(folder: Path) -> CertificateBundle | None:
    """The proof in a folder; None if its certificate and key are not of one pair."""
    try:
        authority, pem, key = ((folder / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY))
        x509.load_pem_x509_certificate(authority)
        certificate = x509.load_pem_x509_certificate(pem)
        fits = load_pem_private_key(key, password=None).public_key() == certificate.public_key()
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise BadJobError(f"TLS: {folder}: {error}, expected {AUTHORITY}, {CERTIFICATE} and {KEY}") from error
    roles = names.get_values_for_type(x509.DNSName)
    role = next((role for role in roles if role in (PS, WORKER, CLIENT)), None)
    if role is None:
        raise BadJobError(f"TLS: {folder / CERTIFICATE} is for {roles}, expected {PS}, {WORKER} or {CLIENT}")
    return CertificateBundle(authority, pem, key, role, certificate.not_valid_after_utc) if fits else None
