"""What of the environment cannot hold in the containers of a compose fleet is refused before any is started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.tiny_job import job

from psfleet.errors import UsageError
from psfleet.job.job import Job
from psfleet.platforms.compose.store_environment import require_usable

S3 = "s3://bucket/run"
AZURE = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=secret;BlobEndpoint=http://127.0.0.1:10000/a;"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the variables of this machine."""
    for name in ("AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        for each in (name, name.lower()):
            monkeypatch.delenv(each, raising=False)


def stored(url: str | None = S3) -> Job:
    checkpoint: dict[str, Any] = {"store": url}
    return job(checkpoint=checkpoint, tls=True)


@pytest.mark.parametrize(
    "url",
    ["http://localhost:9000", "http://127.0.0.1:9000/", "https://[::1]", "http://s3.localhost", "http://0.0.0.0:1"],
)
def test_a_store_at_loopback_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    said = (
        f"AWS_ENDPOINT_URL has {url}, which in a container is the container itself: expected an address of this machine"
    )
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        require_usable(stored())
    assert "\n" not in str(caught.value)
    require_usable(stored(None))


@pytest.mark.parametrize(
    "url", ["http://172.17.0.1:9000", "https://store.example", "http://localhost.example", "minio"]
)
def test_a_store_elsewhere_is_not(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    require_usable(stored())


def test_the_variable_of_the_service_counts_before_that_of_all_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store.example")
    require_usable(stored())
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://localhost:9001")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL_S3 has http://localhost:9001,"):
        require_usable(stored())


def test_an_emulator_at_loopback_is_refused_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", AZURE)
    with pytest.raises(UsageError, match=r"AZURE_STORAGE_CONNECTION_STRING has http://127.0.0.1:10000/a,") as caught:
        require_usable(stored("az://bucket/run"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
@pytest.mark.parametrize("value", ["http://user:secret@localhost:3128", "127.0.0.1:3128"])
def test_a_proxy_at_loopback_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    said = rf"{name} is at (localhost|127.0.0.1), which in a container .* or amazonaws\.com in NO_PROXY"
    with pytest.raises(UsageError, match=said) as caught:
        require_usable(stored())
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("NO_PROXY", ".amazonaws.com")
    require_usable(stored())


def test_a_proxy_that_the_service_is_not_reached_by_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://localhost:3128")
    require_usable(stored())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.example")
    with pytest.raises(UsageError, match="http_proxy is at localhost,"):
        require_usable(stored())
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    require_usable(stored())


def test_a_file_must_be_there_and_readable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    with pytest.raises(UsageError, match=f"AWS_WEB_IDENTITY_TOKEN_FILE is {token}, expected a file that exists"):
        require_usable(stored())
    token.write_text("secret")
    token.chmod(0o600)
    with pytest.raises(UsageError, match=rf"{token}, which cannot be read by user 10001, .*: `chmod o\+r {token}`"):
        require_usable(stored())
    token.chmod(0o604)
    require_usable(stored())
    require_usable(stored("gs://bucket/run"))
