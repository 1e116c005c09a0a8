"""`psfleet sweep --on`, and the commands that show and end a study in containers, on a scripted platform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.command_line import Psfleet, commands
from support.scripted_platform import ScriptedPlatform, ended, job, log, member
from support.study_samples import JOB, advance, loaded

from psfleet.cli import fleets, logs, sweep
from psfleet.launch.platform import Request
from psfleet.service import settings
from psfleet.sweep.loaded_study import load_study
from psfleet.sweep.on_platform import fleet_job, study_activity

ENTRY = {"event": "trial", "message": "2 of 2: trial 1"}
RUNS = [member("chief", activity="study"), member("worker", 0, activity="study")]
DONE = [ended("chief", activity="study"), ended("worker", 0, activity="study")]


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedPlatform:
    """On which a study of two trials runs, and then ends well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))
    study = loaded(tmp_path).study.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    for _ in range(2):
        advance(load_study(tmp_path / "study.yaml"), tmp_path / "volume")
    read = load_study(tmp_path / "study.yaml")
    found = ScriptedPlatform(RUNS, RUNS, DONE, logs={"chief": log(ENTRY)}, results=tmp_path / "volume")
    found._job, found.driven = fleet_job(read), study_activity(read)
    for module in (fleets, logs, sweep):
        monkeypatch.setattr(module, "platform", lambda *where: found)
    return found


@pytest.fixture
def psfleet(
    platform: ScriptedPlatform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Psfleet]:
    """Runs a command in the folder of the study."""
    with commands(monkeypatch, capsys) as run:
        yield run


def test_a_study_in_containers_says_what_one_on_processes_says(psfleet: Psfleet, tmp_path: Path) -> None:
    said = psfleet("sweep", "study.yaml", "--on", "compose")
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == ENTRY["message"]
    assert "best: trial 0, loss 0, optimizer.learning_rate 0.0" in said.out
    assert (tmp_path / "studies" / "small" / "study.db").exists()


def test_the_hint_after_ctrl_c_repeats_the_command(
    psfleet: Psfleet, platform: ScriptedPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(platform, "log", interrupt)
    monkeypatch.setattr("psfleet.sweep.on_platform.FleetWatcher.run", interrupt)
    said = psfleet("sweep", "study.yaml", "--on", "kubernetes", "--out", "a b", "--context", "far")
    again = "psfleet sweep study.yaml --out 'a b' --on kubernetes --context far"
    assert said.code == 130
    assert f"detached; the study continues. `{again}` reattaches to it" in said.out
    assert "`psfleet down small --on kubernetes --context far` ends it." in said.out
    monkeypatch.setattr("psfleet.sweep.on_platform.start", interrupt)
    said = psfleet("sweep", "study.yaml", "--on", "compose", "--fresh")
    assert "`psfleet sweep study.yaml --on compose --fresh` starts it" in said.out


def test_a_cluster_is_named_for_kubernetes_only(psfleet: Psfleet) -> None:
    said = psfleet("sweep", "study.yaml", "--context", "far")
    assert (said.code, "expected only with --on kubernetes" in said.err) == (64, True)


@pytest.mark.parametrize("name", ["small", "study.yaml"])
def test_status_logs_and_down_take_the_study(psfleet: Psfleet, platform: ScriptedPlatform, name: str) -> None:
    platform._looks = [RUNS]
    assert "chief" in psfleet("status", name, "--on", "compose").out
    assert "2 of 2: trial 1" in psfleet("logs", name, "chief", "--on", "compose").out
    said = psfleet("down", name, "--on", "compose").out
    assert said == "small: down; the command that started the study continues it\n"
    assert psfleet("down", name, "--on", "compose", "--results").out == "small: down\n"
    assert platform.removed == [False, True]


def test_commands_of_training_runs_refuse_a_study(psfleet: Psfleet, platform: ScriptedPlatform) -> None:
    platform._looks = [RUNS]
    for command in (("results", "small"), ("scale", "small", "--workers", "2")):
        said = psfleet(*command, "--on", "compose")
        assert said.code == 64
        assert "fleet small is a study, expected a training run" in said.err
    (Path("small.yaml")).write_text(yaml.safe_dump({**JOB, "name": "small"}))
    said = psfleet("up", "small.yaml", "--on", "compose")
    assert said.code == 64
    assert "fleet small is in the script as a study, expected another name for a training run" in said.err
    assert platform.applied == []


def test_a_study_replaces_no_run_of_its_name(psfleet: Psfleet, platform: ScriptedPlatform) -> None:
    platform._looks, platform._job = [[member("chief")]], job()
    said = psfleet("sweep", "study.yaml", "--on", "compose")
    assert said.code == 64
    assert "fleet small is in the script as a training run, expected another name for a study" in said.err
    applied: list[Request] = platform.applied
    assert applied == []


def test_worker_0_is_not_the_driver(psfleet: Psfleet, platform: ScriptedPlatform) -> None:
    platform._looks = [RUNS]
    platform._logs = {"chief": log({"message": "drives"}), "worker-0": log({"message": "trains"})}
    said = psfleet("logs", "small", "worker-0", "--on", "compose").out
    assert "trains" in said
    assert "drives" not in said


def test_a_study_file_without_a_valid_name_stands_for_no_fleet(psfleet: Psfleet) -> None:
    content = yaml.safe_load(Path("study.yaml").read_text())
    for name in ("Two Words", None):
        Path("study.yaml").write_text(yaml.safe_dump({**content, "name": name}))
        said = psfleet("status", "study.yaml", "--on", "compose")
        assert (said.code, f"'{name}': expected a job file that exists" in said.err) == (64, True)
