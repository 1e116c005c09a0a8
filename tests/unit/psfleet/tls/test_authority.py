"""An authority that is replaced, and certificates that must last for a run."""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from support.command_line import Psfleet, commands

from psfleet.errors import UsageError
from psfleet.tls import certificates, signing
from psfleet.tls.identity import Identity

SECS = 20.0
"""Far more than anything here takes."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificates.make(tmp_path / "certs")
    return tmp_path / "certs"


@pytest.fixture
def psfleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Psfleet]:
    with commands(monkeypatch, capsys) as run:
        yield run


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def expire(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a folder an authority that has ended."""
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "AUTHORITY_DAYS", 0)
        certificates.replace_authority(folder, days=0)


def test_an_expired_authority_is_named_with_the_command_that_replaces_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, psfleet: Psfleet
) -> None:
    expire(folder, monkeypatch)
    for use in (certificates.renew, certificates.ensure):
        with pytest.raises(UsageError, match=f"CA expired on .*: `psfleet certs {folder} --replace-authority`"):
            use(folder)
    said = psfleet("certs", str(folder), "--replace-authority")
    assert (said.code, "fleets with certificates of the old one must be started again" in said.out) == (0, True)
    assert certificates.ensure(folder) > datetime.now(UTC)


def test_a_replaced_authority_issues_the_certificates_of_all_roles(folder: Path) -> None:
    old = certificate(folder / "ca.crt")
    certificates.replace_authority(folder)
    new = certificate(folder / "ca.crt")
    assert new.public_key() != old.public_key()
    for role in ("ps", "worker", "loader", "client"):
        assert certificate(folder / role / "ca.crt") == new
        certificate(folder / role / "tls.crt").verify_directly_issued_by(new)
    certificates.renew(folder)


def test_only_a_folder_of_certificates_gets_another_authority(tmp_path: Path, psfleet: Psfleet) -> None:
    with pytest.raises(UsageError, match=r"ca\.crt is missing, expected those of `psfleet certs`"):
        certificates.replace_authority(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert psfleet("certs", str(tmp_path), "--renew", "--replace-authority").code == 64


def test_certificates_that_would_end_before_a_run_are_renewed(folder: Path) -> None:
    first = certificate(folder / "ps" / "tls.crt")
    certificates.ensure(folder, lasting=timedelta(days=29))
    assert certificate(folder / "ps" / "tls.crt") == first
    ends = certificates.ensure(folder, days=61, lasting=timedelta(days=60))
    assert ends - datetime.now(UTC) > timedelta(days=60)
    assert certificate(folder / "ps" / "tls.crt").not_valid_after_utc == ends.replace(microsecond=0)


def test_certificates_of_an_older_psfleet_whose_clients_take_no_connections_are_renewed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(signing, "USES", (ExtendedKeyUsageOID.CLIENT_AUTH,))
        certificates.renew(folder)
    authority = (folder / "ca.crt").read_bytes()
    certificates.ensure(folder)
    uses = certificate(folder / "client" / "tls.crt").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.SERVER_AUTH in uses
    assert (folder / "ca.crt").read_bytes() == authority
    renewed = (folder / "client" / "tls.crt").read_bytes()
    certificates.ensure(folder)
    assert (folder / "client" / "tls.crt").read_bytes() == renewed


def test_certificates_of_an_older_psfleet_without_one_for_loaders_are_renewed(folder: Path) -> None:
    shutil.rmtree(folder / "loader")
    authority = (folder / "ca.crt").read_bytes()
    certificates.ensure(folder)
    assert Identity(folder / "loader").role == "loader"
    assert (folder / "ca.crt").read_bytes() == authority


@pytest.mark.parametrize("left", [[], ["ca.crt"], ["ca.crt", "tls.key"]], ids=["no file", "authority", "key"])
def test_a_first_certificate_for_loaders_that_a_killed_command_has_begun_is_made(folder: Path, left: list[str]) -> None:
    for path in (folder / "loader").iterdir():
        if path.name not in left:
            path.unlink()
    certificates.ensure(folder)
    certificate(folder / "loader" / "tls.crt").verify_directly_issued_by(certificate(folder / "ca.crt"))


@pytest.mark.parametrize("file", ["tls.key", "tls.crt", "ca.crt"])
def test_files_that_a_killed_command_has_left_half_replaced_are_renewed(
    folder: Path, tmp_path: Path, file: str
) -> None:
    """Otherwise no process with this role would start until the certificate is due, which is weeks later."""
    certificates.make(tmp_path / "others")
    (folder / "worker" / file).write_bytes((tmp_path / "others" / "worker" / file).read_bytes())
    certificates.ensure(folder)
    assert Identity(folder / "worker").role == "worker"
    assert certificate(folder / "worker" / "ca.crt") == certificate(folder / "ca.crt")
    certificate(folder / "worker" / "tls.crt").verify_directly_issued_by(certificate(folder / "ca.crt"))
    first = certificate(folder / "worker" / "tls.crt")
    certificates.ensure(folder)
    assert certificate(folder / "worker" / "tls.crt") == first


@pytest.mark.parametrize("use", [certificates.renew, certificates.replace_authority, certificates.ensure])
def test_of_two_commands_that_replace_certificates_one_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], datetime]
) -> None:
    """Otherwise the certificate of one could lie beside the key of the other."""
    (folder / "ps" / "tls.key").unlink()
    writes, waits, real_write = threading.Event(), threading.Event(), certificates._write
    order: list[str] = []

    def write(path: Path, *arguments: Any, **options: Any) -> None:
        order.append(threading.current_thread().name)
        if path.name == "tls.key" and not writes.is_set():
            writes.set()
            assert waits.wait(SECS), "the second command does not wait for the first one"
        real_write(path, *arguments, **options)

    def flock(descriptor: int, operation: int, lock: Callable[[int, int], None] = fcntl.flock) -> None:
        try:
            lock(descriptor, operation)
        except BlockingIOError:
            waits.set()
            raise

    monkeypatch.setattr(certificates, "_write", write)
    monkeypatch.setattr(certificates.fcntl, "flock", flock)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(certificates.renew, folder)
        assert writes.wait(SECS)
        second = pool.submit(use, folder)
        first.result(SECS)
        second.result(SECS)
    assert order == sorted(order, key=order.index), "one after the other"
    for role in ("ps", "worker", "client"):
        assert Identity(folder / role).role == role
        certificate(folder / role / "tls.crt").verify_directly_issued_by(certificate(folder / "ca.crt"))


def test_a_command_that_replaces_certificates_for_long_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOCK_SECS", 0.1)
    with (folder / certificates.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert certificates.ensure(folder) > datetime.now(UTC), "nothing is replaced"
        with pytest.raises(UsageError, match=r"another command replaces them, expected one at a time"):
            certificates.renew(folder)


def test_certificates_that_another_command_has_just_made_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []
    make = certificates.make

    def late(folder: Path, days: int) -> datetime:
        make(folder)
        made.append((folder / "ca.crt").read_bytes())
        return make(folder, days)

    monkeypatch.setattr(certificates, "make", late)
    certificates.ensure(tmp_path / "certs")
    assert (tmp_path / "certs" / "ca.crt").read_bytes() == made[0]
