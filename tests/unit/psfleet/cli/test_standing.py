"""The commands `psfleet fleet` and `psfleet run`: bad input in one line, and what a script gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Psfleet

from psfleet.errors import BAD_JOB, USAGE
from psfleet.job.fleet_access import FleetAccess
from psfleet.platforms.standing import local
from psfleet.platforms.standing.fleet_folder import FleetFolder
from psfleet.service import settings

ACCESS = FleetAccess(name="lab", id="lab-1", version="1", ps=["127.0.0.1:1"])


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))


def test_a_bad_fleet_file_is_refused_in_one_line(psfleet: Psfleet, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("name: lab\nfleet: {spares: 1}\n")
    said = psfleet("fleet", "up", str(tmp_path / "fleet.yaml"))
    assert (said.code, said.err) == (BAD_JOB, f"psfleet: {tmp_path}/fleet.yaml: fleet.spares: unknown key\n")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "words", [("fleet", "down", "lab"), ("run", __file__, "--fleet", "lab"), ("train", "job.yaml", "--fleet", "lab")]
)
def test_an_unknown_fleet_is_a_usage_error(psfleet: Psfleet, words: Sequence[str]) -> None:
    said = psfleet(*words)
    assert said.code == USAGE
    assert said.err == "psfleet: no fleet 'lab', expected one that `psfleet fleet up` started: there is none\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "moon"), "platform 'moon': expected one of compose, kubernetes"),
        (("--context", "far"), "--context far: expected only with --on kubernetes"),
        (("--on", "compose", "--namespace", "team"), "--namespace team: expected only with --on kubernetes"),
    ],
)
@pytest.mark.parametrize("command", [("fleet", "down", "lab"), ("run", __file__, "--fleet", "lab")])
def test_every_command_takes_a_platform(
    psfleet: Psfleet, command: Sequence[str], words: Sequence[str], message: str
) -> None:
    said = psfleet(*command, *words)
    assert (said.code, said.err) == (USAGE, f"psfleet: {message}\n")


def test_a_script_that_is_not_there_is_a_usage_error(psfleet: Psfleet) -> None:
    said = psfleet("run", "missing.py", "--fleet", "lab")
    assert (said.code, said.err) == (USAGE, "psfleet: client missing.py: no such file, expected a Python script\n")


@pytest.mark.parametrize("tls", [False, True])
def test_a_script_gets_its_arguments_and_the_fleet(
    psfleet: Psfleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    script = tmp_path / "client.py"
    script.write_text("")
    became: list[Any] = []

    def become(path: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        became.extend([path, list(arguments), environment])
        raise SystemExit(0)

    monkeypatch.setattr(local, "become_script", become)
    folder = FleetFolder(tmp_path / "lab")
    monkeypatch.setattr(local, "find", lambda name: folder)
    if tls:
        folder.certificates.mkdir(parents=True)
    monkeypatch.setattr(FleetFolder, "access", lambda folder: ACCESS)
    said = psfleet("run", str(script), "a", "--steps", "5", "--fleet", "lab", "-v", "--", "--fleet", "--help")
    assert said.code == 0, said.err
    path, arguments, environment = became
    assert (path, arguments) == (script, ["a", "--steps", "5", "-v", "--fleet", "--help"])
    assert json.loads(environment[settings.FLEET]) == ACCESS.model_dump()
    assert environment[settings.TLS] == (str(folder.certificates / "client") if tls else "")
    assert "grpc.keepalive_time_ms" in environment["TF_GRPC_DEFAULT_OPTIONS"]
