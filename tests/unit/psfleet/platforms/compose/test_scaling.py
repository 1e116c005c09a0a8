"""What `psfleet scale` asks of a Docker engine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from docker.errors import APIError, NotFound
from support.compose_samples import container
from support.scripted_platform import job

from psfleet.errors import LostPeerError
from psfleet.platforms.compose import engine
from psfleet.platforms.compose.containers import SERVICE, WORKING_DIR
from psfleet.platforms.compose.engine import translate_errors
from psfleet.platforms.compose.scaling import scale_loaders, scale_workers


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


@pytest.mark.parametrize(("message", "calls"), [('name "x" is already in use by container "4a"', 2), ("no disk", 1)])
def test_loaders_that_another_command_creates_at_the_same_time_are_there(
    chief: Any, started: list[str], monkeypatch: pytest.MonkeyPatch, message: str, calls: int
) -> None:
    made: list[tuple[str, ...]] = []

    def compose(project: str, text: str, home: Path, *arguments: str) -> None:
        made.append(arguments)
        if len(made) == 1:
            raise LostPeerError(message)

    monkeypatch.setattr(engine, "compose", compose)
    with pytest.raises(LostPeerError, match=message) if calls == 1 else nullcontext():
        scale_loaders(job(input={"from": "loaders", "loaders": 2}), chief, [], 2)
    assert made == [made[0]] * calls


def test_a_worker_of_a_file_that_was_rendered_to_another_folder_has_the_program_of_the_chief(
    chief: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker compose -f FILE up` labels containers with the folder of FILE."""
    made: list[tuple[str, Path]] = []
    monkeypatch.setattr(engine, "require_plugin", lambda: None)
    monkeypatch.setattr(engine, "compose", lambda project, text, home, *arguments: made.append((text, home)))
    program = tmp_path / "program"
    chief.attrs["Mounts"] = [
        {"Type": "volume", "Source": "/var/lib/docker/volumes/results", "Destination": "/out"},
        {"Type": "bind", "Source": str(program), "Destination": "/program"},
    ]
    scale_workers(job(), chief, 3)
    ((text, home),) = made
    sources = [each["source"] for each in yaml.safe_load(text)["services"]["worker"]["volumes"]]
    assert (str(program) in sources, str(tmp_path) in sources, home) == (True, False, tmp_path)
