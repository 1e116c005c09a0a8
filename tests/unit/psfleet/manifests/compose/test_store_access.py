"""Which containers of a compose fleet reach the store of its checkpoints, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.errors import BadJobError
from psfleet.job.job import parse_job
from psfleet.manifests.compose.render import file_text, render
from psfleet.manifests.compose.store_access import NO_PROXY, PROXIES

JOB: dict[str, Any] = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
    "checkpoint": {"store": "s3://bucket/run"},
    "tls": True,
}


def test_ps_and_chief_have_a_way_out_and_the_credentials(tmp_path: Path) -> None:
    services = render(parse_job(JOB), tmp_path / "job.yaml")["services"]
    for name in ("ps-0", "ps-1", "chief"):
        assert list(services[name]["networks"]) == ["fleet", "outside"], name
        assert "AWS_ACCESS_KEY_ID" in services[name]["environment"], name
    assert list(services["worker"]["networks"]) == ["fleet"]
    assert not [name for name in services["worker"]["environment"] if name.startswith("AWS_")]


def test_the_file_has_the_names_of_credentials_and_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tester")
    text = file_text(parse_job(JOB), tmp_path / "job.yaml", None, "")
    assert "secret-of-the-tester" not in text
    environment = yaml.safe_load(text)["services"]["ps-0"]["environment"]
    assert environment["AWS_SECRET_ACCESS_KEY"] is None, "compose takes the value from its own environment"


def test_a_way_out_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(BadJobError, match=r"tls is false, expected true with checkpoint.store s3://bucket/run"):
        render(parse_job({**JOB, "tls": False}), tmp_path / "job.yaml")


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the files and proxies of this machine."""
    for name in ("AWS_CA_BUNDLE", *PROXIES, *NO_PROXY):
        monkeypatch.delenv(name, raising=False)


def test_files_that_the_environment_names_are_mounted_where_the_variables_point_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", "own/ca$.crt")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/token")
    services = render(parse_job(JOB), tmp_path / "job.yaml")["services"]
    wanted = {"/store/AWS_CA_BUNDLE": f"{tmp_path}/own/ca$$.crt", "/store/AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token"}
    for name in ("ps-0", "chief"):
        mounted = {each["target"]: each for each in services[name]["volumes"] if each["target"] in wanted}
        assert {target: each["source"] for target, each in mounted.items()} == wanted
        assert all(each["read_only"] and each["type"] == "bind" for each in mounted.values())
        assert services[name]["environment"]["AWS_CA_BUNDLE"] == "/store/AWS_CA_BUNDLE"
    assert not [each for each in services["worker"]["volumes"] if each["target"] in wanted]


def test_without_such_a_file_its_variable_is_not_set(tmp_path: Path) -> None:
    environment = render(parse_job(JOB), tmp_path / "job.yaml")["services"]["chief"]["environment"]
    assert not {"AWS_CA_BUNDLE", "AWS_WEB_IDENTITY_TOKEN_FILE", *PROXIES, *NO_PROXY} & environment.keys()


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_proxies_are_for_the_store_and_not_for_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy:3128")
    monkeypatch.setenv(name, ".corp,10.0.0.1")
    services = render(parse_job(JOB), tmp_path / "job.yaml")["services"]
    for each in ("ps-1", "chief"):
        environment = services[each]["environment"]
        assert environment["HTTPS_PROXY"] is None, "compose takes the value, which can have a password, as it starts"
        assert environment["NO_PROXY"] == environment["no_proxy"] == "localhost,127.0.0.1,ps-0,ps-1,.corp,10.0.0.1"
        assert "HTTP_PROXY" not in environment
    assert "HTTPS_PROXY" not in services["worker"]["environment"]
    unstored = render(parse_job({**JOB, "checkpoint": {}}), tmp_path / "job.yaml")["services"]
    assert "HTTPS_PROXY" not in unstored["chief"]["environment"]
