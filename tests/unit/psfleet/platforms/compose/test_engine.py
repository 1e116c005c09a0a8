"""What is said when docker, its engine or its compose plugin is missing or too old."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import DockerException, ImageNotFound
from support.command_line import commands

from psfleet.errors import USAGE, LostPeerError, UsageError
from psfleet.platforms.compose import engine

JOB = Path(__file__).parents[5] / "examples" / "linear" / "job.yaml"


@pytest.mark.parametrize("command", [["up", str(JOB)], ["status"], ["logs", "linear"], ["down", "linear"]])
def test_without_an_engine_one_line_names_the_command_that_needs_none(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**arguments: object) -> None:
        raise DockerException("Connection refused")

    monkeypatch.setattr(engine, "open_client", refuse)
    with commands(monkeypatch, capsys) as psfleet:
        said = psfleet(*command, "--on", "compose")
    assert said.code == USAGE
    assert_is_told(said.err)


def test_a_socket_that_is_not_there_is_no_engine() -> None:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run(
        [sys.executable, "-m", "psfleet", "status", "--on", "compose"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == USAGE
    assert_is_told(done.stderr)


@pytest.mark.filterwarnings("error")
def test_a_refused_connection_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    unclosed = []
    monkeypatch.setattr(sys, "unraisablehook", unclosed.append)
    with pytest.raises(UsageError, match="no Docker engine can be reached") as refused:
        engine.connect()
    del refused
    gc.collect()
    assert not unclosed


def assert_is_told(text: str) -> None:
    (line,) = text.splitlines()
    assert "no Docker engine can be reached" in line
    assert "`psfleet train JOB` needs no containers" in line


def docker_command(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Makes `docker` a shell script."""
    command = folder / "docker"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_missing_plugin_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker_command(tmp_path, monkeypatch, "echo \"docker: 'compose' is not a docker command.\" >&2; exit 1")
    with pytest.raises(UsageError, match=r"`docker compose` does not work, expected .* 2\.20 or later"):
        engine.require_plugin()


def test_a_plugin_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker_command(tmp_path, monkeypatch, "exec /bin/sleep 20")
    monkeypatch.setattr(engine, "PLUGIN_SECS", 0.1)
    with pytest.raises(UsageError, match=r"`docker compose` does not answer, expected .* 2\.20 or later"):
        engine.require_plugin()


def test_a_missing_docker_command_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no `docker` command"):
        engine.require_plugin()


@pytest.mark.parametrize("version", ["2.19.1", "v1.29.2"])
def test_an_old_plugin_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    docker_command(tmp_path, monkeypatch, f"echo {version}")
    with pytest.raises(UsageError, match=f"`docker compose` is {version}"):
        engine.require_plugin()


def test_a_plugin_that_is_new_enough_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker_command(tmp_path, monkeypatch, "echo 2.20.0-debian")
    engine.require_plugin()


def engine_that_answers(monkeypatch: pytest.MonkeyPatch, **answer: object) -> None:
    """Makes the engine answer `GET /version` so."""
    found = SimpleNamespace(version=lambda: answer)
    monkeypatch.setattr(engine, "open_client", lambda **arguments: found)


def test_an_old_engine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_that_answers(monkeypatch, Version="19.03.15", ApiVersion="1.40")
    with pytest.raises(UsageError, match=r"engine is 19\.03\.15 with API 1\.40, expected API 1\.41 .*or later"):
        engine.connect()


@pytest.mark.parametrize("version", ["20.10.24+dfsg1", "29.0.0", "library-import", "dev"])
def test_an_engine_is_judged_by_its_api_whatever_its_version_is_called(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_that_answers(monkeypatch, Version=version, ApiVersion="1.41", Components=[{"Name": "Engine"}])
    assert engine.connect().version()["Version"] == version


def test_podman_is_refused_although_its_api_is_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_that_answers(monkeypatch, Version="5.2.2", ApiVersion="1.41", Components=[{"Name": "Podman Engine"}])
    with pytest.raises(UsageError, match=r"the engine is Podman 5\.2\.2, expected Docker's"):
        engine.connect()


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's folder of configuration with the current context `far`; no engine answers anywhere."""
    meta = tmp_path / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    endpoint = {"Host": "unix:///far/docker.sock", "SkipTLSVerify": False}
    (meta / "meta.json").write_text(json.dumps({"Name": "far", "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "far"}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)

    def refuse(base_url: str, **arguments: object) -> None:
        raise DockerException(f"nothing answers {base_url}")

    monkeypatch.setattr(engine, "open_client", refuse)


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize(
    ("variable", "value", "address"),
    [
        ("UNUSED", "", "unix:///far/docker.sock"),
        ("DOCKER_CONTEXT", "default", "unix:///var/run/docker.sock"),
        ("DOCKER_HOST", "tcp://other:2375", "tcp://other:2375"),
    ],
)
def test_the_engine_is_that_of_dockers_own_commands(
    variable: str, value: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    message = f"no Docker engine can be reached at {address} (nothing answers {address})"
    with pytest.raises(UsageError, match=re.escape(message)):
        engine.connect()


@pytest.mark.usefixtures("contexts")
def test_a_context_that_does_not_exist_is_not_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "nobody")
    with pytest.raises(UsageError, match="the current Docker context does not exist"):
        engine.connect()


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize("content", ["{broken", '{"Name": "far"}', "[]"])
def test_a_context_that_cannot_be_read_is_no_bug(content: str, tmp_path: Path) -> None:
    (meta,) = tmp_path.rglob("meta.json")
    meta.write_text(content)
    with pytest.raises(UsageError, match="the current Docker context cannot be read"):
        engine.connect()


def test_an_engine_behind_ssh_is_refused_with_another_way_to_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://someone@host")
    with pytest.raises(UsageError, match=r"is ssh://someone@host, expected unix:// or tcp://: .*`ssh -N -L"):
        engine.connect()


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        ("psfleet-worker:latest", "`make images` builds it"),
        ("registry.example/mine:1", "expected one that you have built or pulled"),
    ],
)
def test_a_missing_image_is_named_with_a_way_to_get_it(missing: str, hint: str) -> None:
    def get(name: str) -> Any:
        if name == missing:
            raise ImageNotFound(name)

    client: Any = SimpleNamespace(images=SimpleNamespace(get=get))
    with pytest.raises(UsageError, match=f"no image {missing}: {hint}"):
        engine.require_images(client, ["psfleet-ps:latest", missing])


def test_a_compose_command_that_fails_is_told_by_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker_command(tmp_path, monkeypatch, "echo first >&2; echo the reason >&2; exit 1")
    with pytest.raises(Exception, match="docker compose up: the reason"):
        engine.compose("psfleet-small", "{}", tmp_path, "up")


def test_a_folder_that_the_engines_machine_lacks_needs_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "Error response from daemon: invalid mount config: bind source path does not exist: /home/me/job"
    docker_command(tmp_path, monkeypatch, f"echo '{refusal}' >&2; exit 1")
    with pytest.raises(UsageError, match=r"has no /home/me/job: .*container\.program: image"):
        engine.compose("psfleet-small", "{}", tmp_path, "up")


def test_a_compose_command_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker_command(tmp_path, monkeypatch, "exec /bin/sleep 30")
    monkeypatch.setattr(engine, "COMPOSE_SECS", 0.2, raising=False)
    with pytest.raises(LostPeerError, match=r"docker compose up: it did not end within 0\.2 s"):
        engine.compose("psfleet-small", "{}", tmp_path, "up")
