"""The errors of stores other than S3, which the clients of Azure and Google report in ways of their own.

Classes, attributes and texts are those of adlfs 2026.8 with Azurite 3.35, and of gcsfs 2026.10.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Never

import pytest

from psfleet.checkpoint import object_store, store_client
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError


class HttpResponseError(Exception):
    """As azure-core's."""

    def __init__(self, message: str, status_code: int, error_code: str = "") -> None:
        super().__init__(message)
        self.status_code = status_code
        self.error_code = error_code


class HttpError(Exception):
    """As gcsfs's."""

    code = 401


REFUSED = HttpResponseError("Server failed to authenticate the request.", 403)
NO_CONTAINER = HttpResponseError("The specified container does not exist.", 404, "ContainerNotFound")


def raising(error: Exception, outer: type[Exception] | None = None) -> Any:
    """A method of a file system that raises an error, as the cause of another one if `outer` is given."""

    def method(*arguments: object, **options: object) -> Never:
        if outer is None:
            raise error
        raise outer(f"Failed to upload block: {error}") from error

    return method


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The file system of all schemes."""
    made = SimpleNamespace(find=lambda path, detail: {}, exists=lambda path: True)
    monkeypatch.setattr(object_store, "file_system", lambda scheme: made)
    return made


@pytest.fixture
def _no_file_system() -> Iterator[None]:
    store_client.file_system.cache_clear()
    yield
    store_client.file_system.cache_clear()


@pytest.mark.parametrize(
    ("url", "error", "outer"),
    [
        ("az://models/run", REFUSED, None),
        ("az://models/run", REFUSED, RuntimeError),
        ("gs://models/run", OSError("Forbidden: models/run\nno storage.objects.list"), None),
        ("gs://models/run", HttpError("Invalid Credentials, 401"), None),
    ],
)
def test_refused_credentials_are_not_tried_again(
    store: SimpleNamespace, url: str, error: Exception, outer: type[Exception] | None
) -> None:
    store.find = store.pipe_file = raising(error, outer)
    for call in (StoreFolder.iterdir, lambda folder: (folder / "one").write_bytes(b"1")):
        with pytest.raises(StoreError) as caught:
            call(StoreFolder(url))
        assert caught.value.is_denied


def test_a_store_that_is_down_is_tried_again(store: SimpleNamespace) -> None:
    store.find = raising(HttpResponseError("The server is busy.", 503))
    with pytest.raises(StoreError) as caught:
        StoreFolder("az://models/run").iterdir()
    assert not caught.value.is_denied


@pytest.mark.parametrize("outer", [None, RuntimeError])
def test_an_object_in_a_container_that_does_not_exist_names_it(
    store: SimpleNamespace, outer: type[Exception] | None
) -> None:
    store.pipe_file = raising(NO_CONTAINER, outer)
    with pytest.raises(StoreError, match="bucket models does not exist") as caught:
        (StoreFolder("az://models/run") / "one").create(b"1")
    assert caught.value.is_denied


def test_a_container_that_does_not_exist_is_no_empty_folder(store: SimpleNamespace) -> None:
    """adlfs finds nothing in it."""
    assert StoreFolder("az://models/run").iterdir() == []
    store.exists = lambda path: path != "models"
    with pytest.raises(StoreError, match="bucket models does not exist"):
        StoreFolder("az://models/run").iterdir()


@pytest.mark.usefixtures("_no_file_system")
def test_an_environment_without_an_account_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = ModuleType("fsspec")
    fsspec.filesystem = raising(ValueError("Must provide either a connection_string or account_name"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fsspec", fsspec)
    monkeypatch.setattr(store_client, "require_package", lambda url: None)
    with pytest.raises(StoreError, match="az://models/run: Must provide either a connection_string") as caught:
        StoreFolder("az://models/run").iterdir()
    assert caught.value.is_denied
