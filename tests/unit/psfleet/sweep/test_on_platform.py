"""`psfleet sweep --on`: a study on a platform, from its start to its copied results."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.scripted_platform import ScriptedPlatform, ended, log, member
from support.study_samples import advance, loaded

from psfleet.errors import LostPeerError, PsfleetError, UsageError
from psfleet.job.activity import Activity
from psfleet.launch import watcher
from psfleet.launch.platform import Member
from psfleet.launch.watcher import TakenDownError
from psfleet.service import settings
from psfleet.sweep.driver import sweep
from psfleet.sweep.loaded_study import LoadedStudy
from psfleet.sweep.on_platform import fleet_job, study_activity, sweep_on

DONE = [ended("chief", activity="study"), ended("worker", 0, activity="study")]
RUNS = [member("chief", activity="study"), member("worker", 0, activity="study")]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))
    monkeypatch.setattr(watcher, "LEAVE_SECS", 0.1)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """What the driver has written."""
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def platform(volume: Path, study: LoadedStudy, *looks: list[Member], **logs: list[str]) -> ScriptedPlatform:
    found = ScriptedPlatform(*looks, results=volume, trained=fleet_job(study), logs=logs)
    found.driven = study_activity(study)
    return found


def test_a_study_is_started_followed_copied_and_removed(tmp_path: Path, volume: Path) -> None:
    study, out = loaded(tmp_path / "program"), tmp_path / "studies"
    advance(study, volume)
    advance(study, volume)
    lines = log({"event": "trial", "message": "1 of 2"}, {"event": "listening", "message": "not shown"})
    place = platform(volume, study, [], RUNS, RUNS, DONE, chief=lines)
    shown: list[str] = []
    found = sweep_on(place, study, out, "compose", show=shown.append)
    assert [request.activity for request in place.applied] == [study_activity(study)]
    assert (found.total, [trial.number for trial in found.best]) == (2, [0, 1])
    assert shown == ["1 of 2"]
    assert place.removed == [False], "what the driver has stays"
    assert [path.read_bytes() for path in sorted((out / "weights").iterdir())] == [b"weights 0", b"weights 1"]
    assert (out / "logs" / "driver.log").read_text().splitlines() == lines
    assert (out / "report.html").read_text() == "a page"
    best = yaml.safe_load((out / "best.yaml").read_text())
    (rate,) = found.best[0].params.values()
    assert (best["optimizer"]["learning_rate"], best["program"]) == (rate, "best_program:build")
    assert str(tmp_path / "program") in (out / "best_program.py").read_text(), "not the folder in the container"
    with (out / "trials.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["complete"] * 2


def test_a_study_whose_results_were_deleted_is_not_done(tmp_path: Path, volume: Path) -> None:
    study, out = loaded(tmp_path), tmp_path / "studies"
    with pytest.raises(LostPeerError, match="study small is done, but compose has no results of it"):
        sweep_on(platform(volume, study, DONE), study, out, "compose")
    assert not (out / "study.db").exists(), "an empty one would be that of a study on this machine"


def test_a_copied_study_has_nothing_left_to_do_here(tmp_path: Path, volume: Path) -> None:
    study, out = loaded(tmp_path), tmp_path / "studies"
    advance(study, volume)
    advance(study, volume)
    sweep_on(platform(volume, study, DONE), study, out, "compose")
    assert len(sweep(study, out).finished) == 2


def test_the_next_copy_replaces_the_one_before_and_what_is_no_longer_there(tmp_path: Path, volume: Path) -> None:
    study, out = loaded(tmp_path), tmp_path / "studies"
    advance(study, volume)
    place = platform(volume, study, [ended("chief", 0, 75, activity="study")])
    with pytest.raises(PsfleetError, match="study small: chief: exit code 75"):
        sweep_on(place, study, out, "compose")
    advance(study, volume)
    (volume / "weights" / "00000.safetensors").unlink()
    assert len(sweep_on(platform(volume, study, DONE), study, out, "compose").finished) == 2
    assert [path.name for path in (out / "weights").iterdir()] == ["00001.safetensors"]


def test_results_that_the_copy_would_replace_are_refused(tmp_path: Path, volume: Path) -> None:
    study, out = loaded(tmp_path), tmp_path / "studies"
    advance(study, volume)
    advance(study, out)
    place = platform(volume, study, DONE)
    with pytest.raises(UsageError, match="has a study of processes of this machine, expected another folder"):
        sweep_on(place, study, out, "compose")
    sweep_on(platform(volume, study, [], DONE), study, out, "compose", fresh=True)
    with pytest.raises(UsageError, match="has a study on compose, expected another folder"):
        sweep_on(place, study, out, "kubernetes")
    advance(study, out)
    with pytest.raises(UsageError, match="continued on this machine after it was copied from compose"):
        sweep_on(place, study, out, "compose")
    assert place.applied == []


def test_a_driver_that_fails_before_the_first_trial_leaves_no_database_and_its_error(
    tmp_path: Path, volume: Path
) -> None:
    study, out = loaded(tmp_path), tmp_path / "studies"
    entry = {"level": "error", "event": "failed", "exit_code": 78, "message": "no such metric"}
    place = platform(volume, study, [ended("chief", 0, 78, activity="study")], chief=log(entry))
    with pytest.raises(PsfleetError, match=r"^study small: no such metric$") as raised:
        sweep_on(place, study, out, "compose")
    assert raised.value.exit_code == 78
    assert not (out / "study.db").exists()
    assert place.removed == [False]


@pytest.mark.parametrize(("code", "expected"), [(137, 75), (143, 143), (70, 70), (75, 75)])
def test_the_exit_code_is_that_of_the_driver_and_75_if_it_was_killed(
    tmp_path: Path, volume: Path, code: int, expected: int
) -> None:
    study = loaded(tmp_path)
    with pytest.raises(PsfleetError) as raised:
        sweep_on(platform(volume, study, [ended("chief", 0, code, activity="study")]), study, tmp_path / "o", "compose")
    assert raised.value.exit_code == expected


def test_a_worker_that_is_gone_for_good_does_not_end_the_study(tmp_path: Path, volume: Path) -> None:
    study = loaded(tmp_path)
    advance(study, volume)
    gone = ended("worker", 0, 70, activity="study")
    place = platform(volume, study, [RUNS[0], gone], [RUNS[0], gone], [DONE[0], gone])
    assert len(sweep_on(place, study, tmp_path / "o", "compose").finished) == 1
    assert place.stopped == []


def test_a_study_that_was_taken_down_says_how_it_continues(tmp_path: Path, volume: Path) -> None:
    study = loaded(tmp_path)
    with pytest.raises(TakenDownError, match="fleet small was taken down; the same command continues"):
        sweep_on(platform(volume, study, RUNS, RUNS, []), study, tmp_path / "o", "compose")


@pytest.mark.parametrize("change", [{"search": {"kind": "grid", "seed": 1}}, {"fleet": {"workers": 1}}])
def test_a_study_that_runs_with_other_settings_is_not_attached_to(
    tmp_path: Path, volume: Path, change: dict[str, object]
) -> None:
    study = loaded(tmp_path)
    with pytest.raises(UsageError, match="runs another version of the study"):
        sweep_on(platform(volume, study, RUNS), loaded(tmp_path, **change), tmp_path / "o", "compose")


def test_the_fleet_has_the_containers_of_the_job_and_a_worker_for_each_trial_at_most(tmp_path: Path) -> None:
    job = fleet_job(loaded(tmp_path, fleet={"workers": 8}))
    assert (job.name, job.fleet.processes, job.least_workers) == ("small", 3, 1)
    assert job.container.worker_image == "mine:1"
    activity = study_activity(loaded(tmp_path))
    assert LoadedStudy.from_json(activity.driver_variables["PSFLEET_STUDY"], tmp_path) == loaded(tmp_path)
    assert Activity.from_json(activity.model_dump_json(), "itself") == activity


def test_a_transaction_that_a_killed_driver_left_is_undone_in_the_copy(tmp_path: Path, volume: Path) -> None:
    study, out = loaded(tmp_path), tmp_path / "studies"
    advance(study, volume)
    unsafe = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size = 1')\n"
        "c.execute('PRAGMA cache_spill = 1')\n"
        "c.execute('BEGIN')\n"
        "c.execute('DELETE FROM trials')\n"
        "c.execute('CREATE TABLE padding (text TEXT)')\n"
        "c.executemany('INSERT INTO padding VALUES (?)', [('x' * 4000,)] * 500)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", unsafe, str(volume / "study.db")], check=True)
    assert (volume / "study.db-journal").stat().st_size > 0
    found = sweep_on(platform(volume, study, DONE), study, out, "compose")
    assert [trial.number for trial in found.best] == [0]
    assert not (out / "study.db-journal").exists()


def test_a_copy_is_not_replaced_by_a_study_that_begins_anew(tmp_path: Path, volume: Path) -> None:
    study, out = loaded(tmp_path), tmp_path / "studies"
    advance(study, volume)
    sweep_on(platform(volume, study, DONE), study, out, "compose")
    place = platform(volume, study, [], DONE)
    place.keeps_results = False
    with pytest.raises(UsageError, match="has a copy of a study whose results on compose were deleted"):
        sweep_on(place, study, out, "compose")
    assert place.applied == []
    sweep_on(place, study, out, "compose", fresh=True)
