"""Issues the certificates of a run: its own certificate authority (CA), and one certificate per role.

The folder has mode 0700, the files of the roles inside it are world-readable: a container mounts only the folder of its
role and can read it as any user, while other users of the host cannot enter the outer folder. The key of the CA is
never mounted. A certificate names a role, not a host, so that containers can be added and moved without a new one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from psfleet.errors import UsageError
from psfleet.tls.identity import AUTHORITY, CERTIFICATE, CLIENT, KEY, LOADER, ROLES, SERVICE

AUTHORITY_KEY = "ca.key"
USES = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
"""Of every certificate: a client of a standing fleet takes connections, too."""
DAYS = 30
"""Default validity of a role's certificate; short, to limit the use of a stolen one."""
AUTHORITY_DAYS = 365
"""Minimum validity of a CA."""
CLOCK_SKEW = timedelta(minutes=5)
"""Tolerated clock difference between machines."""


def make(folder: Path, days: int = DAYS) -> datetime:
    """Creates a CA and the certificates of all roles, in a folder that is missing or empty.

    Returns:
        Expiry of the roles' certificates.

    Raises:
        UsageError: The folder is not empty, or cannot be written.
    """
    authority, key = _new_authority(folder, days)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # By a rename, so that no reader finds a CA without certificates.
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _write(made / AUTHORITY_KEY, _private(key), mode=0o600)
            _write(made / AUTHORITY, _public(authority))
            ends = _issue(made, authority, key, days)
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
        return _issue(folder, authority, key, days)
    except OSError as error:
        raise UsageError(f"certificates in {folder}: {error.strerror or error}") from error


def replace_authority(folder: Path, days: int = DAYS) -> datetime:
    """Replaces a folder's CA and the certificates of all roles: processes with the old ones do not trust the new ones.

    Returns:
        Expiry of the roles' certificates.

    Raises:
        UsageError: The folder has no certificates, or cannot be written.
    """
    if not (folder / AUTHORITY).exists():
        raise UsageError(f"certificates in {folder}: {AUTHORITY} is missing, expected those of `psfleet certs`")
    authority, key = _new_authority(folder, days)
    try:
        _write(folder / AUTHORITY_KEY, _private(key), mode=0o600)
        _write(folder / AUTHORITY, _public(authority))
        return _issue(folder, authority, key, days)
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
        return make(folder, days)
    roles = [role for role in ROLES if role != LOADER or (folder / role).exists()]
    try:
        leaves = [x509.load_pem_x509_certificate((folder / role / CERTIFICATE).read_bytes()) for role in roles]
    except (OSError, ValueError) as error:
        raise UsageError(f"certificates in {folder}: {error}, expected those of `psfleet certs`") from error
    late = min(leaf.not_valid_after_utc - (leaf.not_valid_after_utc - leaf.not_valid_before_utc) / 3 for leaf in leaves)
    now, ends = datetime.now(UTC), min(leaf.not_valid_after_utc for leaf in leaves)
    is_usable = LOADER in roles and all(
        _is_usable(folder, role, leaf) for role, leaf in zip(roles, leaves, strict=True)
    )
    return renew(folder, days) if now > late or now + lasting > ends or not is_usable else ends


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


def _new_authority(folder: Path, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A CA for the certificates in a folder, whose name it has."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"psfleet {folder.resolve().name}")])
    end = datetime.now(UTC) + timedelta(days=max(days, AUTHORITY_DAYS))
    authority = (
        _builder(name, name, key.public_key(), end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return authority, key


def _issue(folder: Path, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey, days: int) -> datetime:
    """Issues a key and a certificate for each role; returns their expiry."""
    end = min(datetime.now(UTC) + timedelta(days=days), authority.not_valid_after_utc)
    for role in ROLES:
        own = ec.generate_private_key(ec.SECP256R1())
        # A client is no service, and cannot pass for one.
        names = [role] if role == CLIENT else [role, SERVICE]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"psfleet {role}")])
        leaf = (
            _builder(subject, authority.subject, own.public_key(), end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(USES), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        place = folder / role
        place.mkdir(exist_ok=True)
        place.chmod(0o755)
        _write(place / AUTHORITY, _public(authority))
        # A reader between these two writes detects that they do not match, and reads again.
        _write(place / KEY, _private(own))
        _write(place / CERTIFICATE, _public(leaf))
    return end


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    """The fields that the certificates of the CA and of the roles have in common."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _public(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces a file atomically; its mode is never wider than `mode`."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    new.rename(path)
