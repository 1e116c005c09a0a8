"""Issues the certificates of a run: its own certificate authority (CA), and one certificate per role.

The folder has mode 0700, the files of the roles inside it are world-readable: a container mounts only the folder of its
role and can read it as any user, while other users of the host cannot enter the outer folder. The key of the CA is
never mounted. A certificate names a role, not a host, so that containers can be added and moved without a new one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from psfleet.errors import DeadlineError, UsageError
from psfleet.files import try_lock
from psfleet.polling import wait_until
from psfleet.tls.identity import AUTHORITY, CERTIFICATE, CLIENT, KEY, LOADER, ROLES, SERVICE
from psfleet.tls.signing import USES, Issued, new_authority, new_certificate, private_pem, public_pem

AUTHORITY_KEY = "ca.key"
LOCK = ".lock"
"""File that a command locks while it replaces certificates; the lock ends with the command."""
LOCK_SECS = 10.0
"""How long a command waits for another one."""
DAYS = 30
"""Default validity of a role's certificate; short, to limit the use of a stolen one."""
AUTHORITY_DAYS = 365
"""Minimum validity of a CA."""


def make(folder: Path, days: int = DAYS) -> datetime:
    """Creates a CA and the certificates of all roles, in a folder that is missing or empty.

    Returns:
        Expiry of the roles' certificates.

    Raises:
        UsageError: The folder is not empty, or cannot be written.
    """
    authority = _new_authority(folder, days)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # By a rename, so that no reader finds a CA without certificates.
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _write_authority(made, authority)
            ends = _issue(made, authority, days)
            made.rename(folder)
        except BaseException:
            shutil.rmtree(made)
            raise
    except OSError as error:
        raise UsageError(
            f"certificates in {folder}: {error.strerror or error}, expected an empty folder, or --renew for "
            "certificates that are there"
        ) from error
    return ends


def renew(folder: Path, days: int = DAYS) -> datetime:
    """Issues new keys and certificates for all roles under the folder's CA; running processes reload them.

    Returns:
        Their expiry, which is not after the CA's.

    Raises:
        UsageError: The CA is missing or has expired, or the folder cannot be written.
    """
    with _only_writer(folder):
        return _renew(folder, days)


def _renew(folder: Path, days: int) -> datetime:
    try:
        authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        key = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise UsageError(f"certificates in {folder}: {error}, expected those of `psfleet certs`") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
        raise UsageError(f"certificates in {folder}: {AUTHORITY_KEY} is not the key of {AUTHORITY}")
    if authority.not_valid_after_utc <= datetime.now(UTC):
        expired = f"{authority.not_valid_after_utc:%Y-%m-%d}"
        raise UsageError(
            f"certificates in {folder}: their CA expired on {expired}, expected a new one: "
            f"`psfleet certs {folder} --replace-authority`, after which running fleets must be started again"
        )
    try:
        return _issue(folder, (authority, key), days)
    except OSError as error:
        raise UsageError(f"certificates in {folder}: {error.strerror or error}") from error


def replace_authority(folder: Path, days: int = DAYS) -> datetime:
    """Replaces a folder's CA and the certificates of all roles: processes with the old ones do not trust the new ones.

    Returns:
        Expiry of the roles' certificates.

    Raises:
        UsageError: The folder has no certificates, or cannot be written.
    """
    with _only_writer(folder):
        try:
            authority = _new_authority(folder, days)
            _write_authority(folder, authority)
            return _issue(folder, authority, days)
        except OSError as error:
            raise UsageError(f"certificates in {folder}: {error.strerror or error}") from error


def ensure(folder: Path, days: int = DAYS, lasting: timedelta = timedelta()) -> datetime:
    """Creates a run's certificates if they are missing, and renews them in the last third of their validity.

    It also renews those of an older psfleet, which had none for loaders, and whose clients could not accept connections
    of a standing fleet, and those that a command has replaced in part, because it was killed.

    Args:
        days: Validity of new ones.
        lasting: They are renewed, too, if they end sooner.

    Returns:
        Expiry of the first that ends.

    Raises:
        UsageError: As in `make` and `renew`.
    """
    if not (folder / AUTHORITY).exists():
        try:
            return make(folder, days)
        except UsageError:
            # Another command may have created them meanwhile.
            if not (folder / AUTHORITY).exists():
                raise
    ends = _lasting(folder, lasting)
    if ends is None:
        with _only_writer(folder):
            # Another command may have renewed them meanwhile.
            ends = _lasting(folder, lasting) or _renew(folder, days)
    return ends


def _lasting(folder: Path, lasting: timedelta) -> datetime | None:
    """Expiry of the first certificate that ends; None if they are to be renewed. See `ensure`."""
    roles = [role for role in ROLES if role != LOADER or (folder / role / CERTIFICATE).exists()]
    try:
        leaves = [x509.load_pem_x509_certificate((folder / role / CERTIFICATE).read_bytes()) for role in roles]
    except (OSError, ValueError) as error:
        raise UsageError(f"certificates in {folder}: {error}, expected those of `psfleet certs`") from error
    late = min(leaf.not_valid_after_utc - (leaf.not_valid_after_utc - leaf.not_valid_before_utc) / 3 for leaf in leaves)
    now, ends = datetime.now(UTC), min(leaf.not_valid_after_utc for leaf in leaves)
    is_usable = roles == [*ROLES] and all(map(partial(_is_usable, folder), roles, leaves))
    return ends if now <= late and now + lasting <= ends and is_usable else None


def _is_usable(folder: Path, role: str, leaf: x509.Certificate) -> bool:
    """Whether a role's certificate has all uses and its key, and the role has the folder's CA."""
    try:
        key = serialization.load_pem_private_key((folder / role / KEY).read_bytes(), password=None)
        own, newest = (
            x509.load_pem_x509_certificate((place / AUTHORITY).read_bytes()) for place in (folder / role, folder)
        )
        uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return key.public_key() == leaf.public_key() and own == newest and all(use in uses for use in USES)


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Context manager during which no other command replaces certificates in a folder.

    Two at once would leave the key of one beside the certificate of the other.
    """
    if not (folder / AUTHORITY).exists():
        raise UsageError(f"certificates in {folder}: {AUTHORITY} is missing, expected those of `psfleet certs`")
    try:
        lock = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageError(f"certificates in {folder}: {error.strerror or error}") from error
    with os.fdopen(lock, "w"):
        try:
            wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), LOCK_SECS, "another command")
        except DeadlineError as error:
            raise UsageError(
                f"certificates in {folder}: another command replaces them, expected one at a time"
            ) from error
        yield


def _new_authority(folder: Path, days: int) -> Issued:
    """A CA for the certificates in a folder, whose name it has."""
    end = datetime.now(UTC) + timedelta(days=max(days, AUTHORITY_DAYS))
    return new_authority(f"psfleet {folder.resolve().name}", end)


def _issue(folder: Path, authority: Issued, days: int) -> datetime:
    """Issues a key and a certificate for each role; returns their expiry."""
    end = min(datetime.now(UTC) + timedelta(days=days), authority[0].not_valid_after_utc)
    for role in ROLES:
        # A client is no service, and cannot pass for one.
        names = [role] if role == CLIENT else [role, SERVICE]
        leaf, key = new_certificate(f"psfleet {role}", names, authority, end)
        place = folder / role
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
        _write(place / AUTHORITY, public_pem(authority[0]))
        # A reader between these two writes detects that they do not match, and reads again.
        _write(place / KEY, private_pem(key))
        _write(place / CERTIFICATE, public_pem(leaf))
    return end


def _write_authority(folder: Path, authority: Issued) -> None:
    certificate, key = authority
    _write(folder / AUTHORITY_KEY, private_pem(key), mode=0o600)
    _write(folder / AUTHORITY, public_pem(certificate))


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces a file atomically; its mode is never wider than `mode`."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    new.rename(path)
