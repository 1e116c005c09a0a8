"""Certificates of a standing fleet on this machine: in its folder, and renewed by its supervisor."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.standing_folder import TWO_PS, folder_of

from psfleet.platforms.standing import supervisor as module
from psfleet.platforms.standing.fleet_folder import FleetFolder
from psfleet.platforms.standing.supervisor import Supervisor
from psfleet.processes import fork_client
from psfleet.service import settings
from psfleet.tls import certificates

FILE = TWO_PS


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetFolder:
    """The folder of a fleet without TLS; no second supervisor is started."""
    monkeypatch.setattr(module, "start_supervisor", lambda folder: SimpleNamespace(poll=lambda: None))
    return folder_of(FILE, tmp_path, monkeypatch)


def test_a_fleet_has_an_authority_of_its_own_as_long_as_it_has_tls(lab: FleetFolder) -> None:
    assert lab.credentials("ps") is None
    lab.make(FILE.model_copy(update={"tls": True}))
    found = {role: lab.credentials(role) for role in ("ps", "worker", "client")}
    assert all(path is not None and (path / "tls.key").is_file() for path in found.values())
    assert lab.certificates.stat().st_mode & 0o777 == 0o700
    before = (lab.certificates / "ca.crt").read_bytes()
    lab.make(FILE.model_copy(update={"tls": True}))
    assert (lab.certificates / "ca.crt").read_bytes() == before
    lab.make(FILE)
    assert lab.credentials("ps") is None


def test_certificates_that_are_due_are_renewed_and_a_failure_does_not_end_the_supervisor(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fork_client, "start", lambda command, modules: SimpleNamespace(pid=os.getpid(), poll=lambda: None)
    )
    secured = FILE.model_copy(update={"tls": True})
    lab.make(secured)
    supervisor = Supervisor(lab, secured)
    assert {task._environment[settings.TLS] for task in supervisor.tasks} == {str(lab.certificates / "ps")}
    certificate = lab.certificates / "ps" / "tls.crt"
    # Valid for so short a time that two thirds of it, with the tolerated clock difference, have passed.
    certificates.renew(lab.certificates, days=0)
    due = certificate.read_bytes()
    supervisor.look()
    assert certificate.read_bytes() == due, "it looks once an hour"
    monkeypatch.setattr(module, "RENEW_SECS", 0.0)
    supervisor.look()
    assert certificate.read_bytes() != due
    (lab.certificates / "ca.key").unlink()
    certificate.write_bytes(due)
    supervisor.look()
    assert certificate.read_bytes() == due
