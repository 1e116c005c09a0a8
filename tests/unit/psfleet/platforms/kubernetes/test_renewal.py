"""Certificates of a fleet that runs: renewed before they end, by the machine that has their authority."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import UsageError
from psfleet.job.job import Job, parse_job
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.kubernetes.tls_secrets import ensure_certificates, tls_secrets
from psfleet.platforms.kubernetes.renewal import RENEW_SECS, Renewal
from psfleet.tls import certificates, identity


def job(**container: Any) -> Job:
    content = {"name": "small", "program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    return parse_job({**content, "train": {"steps": 10, "batch_size": 4}, "tls": True, "container": container})


class Secrets:
    """The Secrets of a fleet, and a clock that tests set.

    Attributes:
        content: By name.
        num_reads: How often one was read.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.num_reads = 0
        self.content: dict[str, Mapping[str, str]] = {}
        self.renewal = Renewal(self, self, job(), clock=lambda: self.now)  # type: ignore[arg-type]

    def secret(self, name: str) -> Mapping[str, str]:
        """See `Cluster`."""
        self.num_reads += 1
        return self.content.get(name, {})

    def apply(self, name: str, objects: Sequence[Mapping[str, Any]]) -> None:
        """See `FleetObjects`."""
        assert name == "small"
        self.content.update({each["metadata"]["name"]: each["data"] for each in objects})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job's certificates on this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    ensure_certificates(job())
    return certificates_folder("small")


@pytest.fixture
def secrets(folder: Path) -> Secrets:
    """Those of a fleet that was started with the certificates of this machine."""
    made = Secrets()
    made.apply("small", tls_secrets(job()))
    return made


def test_late_certificates_are_renewed_in_both_secrets(folder: Path, secrets: Secrets) -> None:
    before = dict(secrets.content)
    secrets.renewal.look()
    assert secrets.content == before, "they have most of their time before them"
    certificates.renew(folder, days=0)
    secrets.now += RENEW_SECS
    secrets.renewal.look()
    assert secrets.content.keys() == {"small-ps-tls", "small-worker-tls"}
    for name, old in before.items():
        new = secrets.content[name]
        assert new["ca.crt"] == old["ca.crt"], "running processes trust it"
        assert (new["tls.crt"] != old["tls.crt"], new["tls.key"] != old["tls.key"]) == (True, True)
    assert certificates.ensure(folder) - datetime.now(UTC) > timedelta(days=29)


def test_they_are_looked_at_once_an_hour(secrets: Secrets) -> None:
    for _ in range(3):
        secrets.renewal.look()
    assert secrets.num_reads == 2
    secrets.now += RENEW_SECS
    secrets.renewal.look()
    assert secrets.num_reads == 4


def test_what_was_renewed_by_hand_reaches_the_fleet(folder: Path, secrets: Secrets) -> None:
    certificates.renew(folder)
    secrets.renewal.look()
    assert secrets.content == {each["metadata"]["name"]: each["data"] for each in tls_secrets(job())}


def test_no_secret_is_made_of_files_that_another_command_is_replacing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "SETTLE_SECS", 0.1)
    (folder / "ps" / "tls.key").write_bytes((folder / "worker" / "tls.key").read_bytes())
    with pytest.raises(UsageError, match=r"certificates in .*small: TLS: .*tls\.key is not the key of tls\.crt"):
        tls_secrets(job())


def test_another_authority_never_replaces_that_of_a_fleet_that_runs(
    folder: Path, secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(secrets.content)
    certificates.replace_authority(folder)
    with caplog.at_level(logging.WARNING):
        secrets.renewal.look()
    assert secrets.content == before
    assert "are not renewed: " in caplog.text
    assert "is not the authority of the fleet" in caplog.text


def test_a_machine_without_the_authority_renews_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    other = Secrets()
    with caplog.at_level(logging.WARNING):
        other.renewal.look()
    assert "expected that of the machine that started the fleet" in caplog.text
    assert (other.content, list(tmp_path.iterdir())) == ({}, [])


def test_a_fleet_is_started_with_certificates_that_outlast_its_run(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    days = 100
    ensure_certificates(job(active_secs=days * 24 * 3600))
    assert certificates.ensure(folder) - datetime.now(UTC) > timedelta(days=days)
    assert not caplog.records
    ensure_certificates(job(active_secs=400 * 24 * 3600))
    assert "the authority of fleet small ends on" in caplog.text


def test_secrets_of_a_fleet_that_is_being_removed_are_not_made_again(secrets: Secrets) -> None:
    """Nothing would own them, and their keys would stay in the namespace."""
    secrets.content.clear()
    secrets.renewal.look()
    assert secrets.content == {}
