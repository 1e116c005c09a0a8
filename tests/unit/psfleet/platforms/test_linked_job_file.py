"""A job file that is a symbolic link: its program, and the paths in it, are beside the link on every platform."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.activity_samples import ACTIVITY, driven_job
from support.scripted_platform import ScriptedPlatform

from psfleet.job.job import load_job
from psfleet.launch.platform import Request
from psfleet.manifests.compose.paths import Paths
from psfleet.manifests.kubernetes import driven
from psfleet.manifests.kubernetes.render import render
from psfleet.platforms.compose import engine, requests
from psfleet.platforms.compose import platform as compose_platform
from psfleet.platforms.compose.platform import Compose
from psfleet.predictions.platform_model import find_model
from psfleet.serving.platform_sources import find_models
from psfleet.sweep.loaded_study import load_study

JOB = """\
name: tiny
program: program:build
options: {data: !path data}
optimizer: {name: sgd, learning_rate: 0.1}
train: {steps: 20, batch_size: 4}
"""
STUDY = """\
name: small
job: job.yaml
space: {optimizer.learning_rate: {choice: [0.01, 0.02]}}
objective: {metric: loss, direction: minimize}
search: {kind: grid}
fleet: {workers: 2}
"""


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """In a folder with another program than that of its target."""
    for name in ("target", "link"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "program.py").write_text(f"BESIDE = {name!r}\n")
    (tmp_path / "target" / "job.yaml").write_text(JOB)
    path = tmp_path / "link" / "job.yaml"
    path.symlink_to(tmp_path / "target" / "job.yaml")
    return path


def test_its_own_paths_are_relative_to_the_link(link: Path) -> None:
    assert load_job(link).options == {"data": str(link.parent / "data")}


def test_a_study_of_it_has_the_program_beside_the_link(link: Path) -> None:
    study = link.with_name("study.yaml")
    study.write_text(STUDY)
    loaded = load_study(study)
    assert (loaded.folder, loaded.job["options"]) == (link.parent, {"data": str(link.parent / "data")})


def test_containers_mount_the_folder_of_the_link(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each["source"] for each in Paths(link, None).mounts(load_job(link))] == [str(link.parent)]
    read: list[Path] = []
    monkeypatch.setattr(engine, "require_plugin", lambda: None)
    monkeypatch.setattr(engine, "require_images", lambda client, images: None)
    monkeypatch.setattr(requests, "require_readable", lambda folder: read.append(folder))
    requests.require_startable(object(), Request(load_job(link), link), [], [])
    assert read == [link.parent]


def test_compose_resolves_paths_in_the_folder_of_the_link(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    for name in ("check", "remove", "_chief", "_start"):
        monkeypatch.setattr(Compose, name, lambda *arguments, **options: None)
    monkeypatch.setattr(compose_platform, "put_files", lambda *arguments: None)
    monkeypatch.setattr(engine, "compose", lambda project, text, folder, *arguments: folders.append(folder))
    Compose().apply(Request(load_job(link), link))
    assert folders == [link.parent]


def test_pods_have_the_files_beside_the_link(link: Path) -> None:
    for objects in (render(load_job(link), link), driven.render(driven_job(), ACTIVITY, link)):
        assert "BESIDE = 'link'" in json.dumps(objects)


def test_predictions_and_services_have_the_program_beside_the_link(link: Path) -> None:
    place = ScriptedPlatform([])
    assert find_model(place, str(link), None, False).home == link.parent
    (model,) = find_models(place, [str(link)], None, None, False, None).models
    assert model.program_folder == str(link.parent)
