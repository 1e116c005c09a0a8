"""What `psfleet scale --loaders N` asks of a Docker engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from support.compose_samples import container
from support.scripted_platform import job

from psfleet.errors import LostPeerError
from psfleet.platforms.compose import engine
from psfleet.platforms.compose.containers import SERVICE, WORKING_DIR
from psfleet.platforms.compose.engine import translate_errors
from psfleet.platforms.compose.scaling import scale_loaders


def loader(index: int, removed: list[int], error: Exception | None = None) -> Any:
    """A container of a loader, whose removal fails with an error."""

    def remove(force: bool, v: bool) -> None:
        removed.append(index)
        if error is not None:
            raise error

    found: Any = container("loader")
    found.labels[SERVICE] = f"loader-{index}"
    found.remove = remove
    return found


@pytest.fixture
def chief(tmp_path: Path) -> Any:
    found: Any = container("chief")
    found.labels[WORKING_DIR] = str(tmp_path)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The services that compose was asked to start."""
    names: list[str] = []
    monkeypatch.setattr(engine, "require_plugin", lambda: None)
    monkeypatch.setattr(engine, "compose", lambda project, text, home, *arguments: names.extend(arguments[4:]))
    return names


def conflict() -> APIError:
    response: Any = SimpleNamespace(status_code=409, reason="Conflict", url="", headers={})
    return APIError("removal of container is already in progress", response)


@pytest.mark.parametrize("error", [None, NotFound("no such container"), conflict()])
def test_a_loader_that_another_command_removes_is_removed(
    chief: Any, started: list[str], error: Exception | None
) -> None:
    """Two commands that scale one fleet at the same time."""
    removed: list[int] = []
    loaded = job(input={"from": "loaders", "loaders": 3})
    scale_loaders(loaded, chief, [loader(index, removed, error) for index in range(3)], 1)
    assert (removed, started) == ([1, 2], ["loader-0"])


def test_a_loader_that_cannot_be_removed_is_an_error(chief: Any, started: list[str]) -> None:
    loaded = job(input={"from": "loaders", "loaders": 2})
    with pytest.raises(LostPeerError, match="disk"), translate_errors():
        scale_loaders(loaded, chief, [loader(1, [], APIError("the disk is full"))], 1)
    assert not started
