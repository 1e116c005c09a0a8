"""What a compose fleet with TLS mounts: the certificate of each service's role, and nothing else of the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_job import job

from psfleet.manifests.compose import render as compose_file
from psfleet.manifests.container import TLS
from psfleet.service import settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a name that compose would take for a variable."""
    monkeypatch.setenv("HOME", str(tmp_path / "a$b"))
    return tmp_path / "a$b"


def sources(service: dict[str, Any]) -> list[str]:
    """What is mounted where the certificate is expected."""
    return [volume["source"] for volume in service["volumes"] if volume["target"] == TLS and volume["read_only"]]


def test_each_service_sees_the_certificate_of_its_role_alone(tmp_path: Path) -> None:
    services = compose_file.render(job(tls=True), tmp_path / "job.yaml")["services"]
    folder = f"{tmp_path}/a$$b/.psfleet/certs/tiny"
    assert sources(services["ps-0"]) == [f"{folder}/ps"]
    assert sources(services["chief"]) == sources(services["worker"]) == [f"{folder}/worker"]
    assert sources(services["tensorboard"]) == []


def test_each_process_is_told_where_its_certificate_is(tmp_path: Path) -> None:
    services = compose_file.render(job(tls=True), tmp_path / "job.yaml")["services"]
    for name in ("ps-0", "chief", "worker"):
        assert services[name]["environment"][settings.TLS] == TLS


def test_without_tls_there_is_nothing_of_it(tmp_path: Path) -> None:
    services = compose_file.render(job(tls=False), tmp_path / "job.yaml")["services"]
    for name in ("ps-0", "chief", "worker"):
        assert sources(services[name]) == []
        assert settings.TLS not in services[name]["environment"]
