"""A handle on a run in containers: the same calls as on local processes, through a relay beside the chief."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import sample_layout, save
from support.container_run import CHIEF, PS, UP, WORKER, Containers, serving
from support.report_samples import DONE
from support.scripted_platform import ended, job, killed, log, member

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.replacement import specs_of
from psfleet.checkpoint.store import newest
from psfleet.errors import DeadlineError, LostPeerError, UsageError
from psfleet.handle import container_channel, starting
from psfleet.launch import watcher
from psfleet.launch.followers import following
from psfleet.run_folder import Owner, claimed, owner

ZEROS = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs_of(sample_layout()).items()}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Containers:
    """The platform that psfleet finds under any name."""
    monkeypatch.setattr(watcher, "LEAVE_SECS", 0.2)
    found = Containers(UP)
    monkeypatch.setattr(starting, "platform", lambda name, context, namespace: found)
    return found


def attached(out: Path) -> psfleet.Run:
    return psfleet.attach("small", on="compose", out=out)


def test_it_does_what_it_does_on_local_processes(place: Containers, tmp_path: Path) -> None:
    with serving(place, tmp_path / "inside", held_at=40) as chief:
        run = attached(tmp_path / "out")
        assert (run.status, run.step) == ("held at step 40", 40)
        assert run.folder == (tmp_path / "out").resolve()
        assert read_manifest(run.save()).step == 40
        run.weights.set(ZEROS)
        assert chief.generation == 3
        assert list(run.weights.get()) == list(ZEROS) == run.weights.names
        assert run.train(5).result(20) == 45
        with pytest.raises(UsageError, match="'extra'"):
            run.weights.set(ZEROS | {"extra": np.zeros(1)})
    expected = ["python", "-m", "psfleet.control.relay", "2223"]
    assert {(name, tuple(words)) for name, words in place.commands} == {("chief", tuple(expected))}


def test_the_relay_of_a_fleet_with_tls_has_the_chiefs_certificate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Containers(UP, trained=job(tls=True))
    monkeypatch.setattr(starting, "platform", lambda name, context, namespace: place)
    with serving(place, tmp_path / "inside"):
        assert attached(tmp_path / "out").status == "training"
    assert place.commands[0][1][-2:] == ["2223", "/tls"]


def test_a_run_has_an_id_of_its_own_where_its_platform_gives_it_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a standing fleet in Kubernetes, where an earlier run of the name may have left shards."""
    place = Containers([PS, replace(CHIEF, run="small-1f"), WORKER])
    monkeypatch.setattr(starting, "platform", lambda name, context, namespace: place)
    with serving(place, tmp_path / "inside", run="small-1f"):
        assert attached(tmp_path / "out").status == "training"


def test_a_call_whose_relay_dies_with_its_chief_is_made_again_in_the_next_container(
    place: Containers, tmp_path: Path
) -> None:
    """The platform leaves the restart of a container that was killed to psfleet."""
    successor = member("chief", created=CHIEF.created, started=9.0)

    def die() -> None:
        place.before = lambda: None
        place.now([PS, killed("chief"), WORKER], [PS, killed("chief"), WORKER], [PS, successor, WORKER])
        raise LostPeerError("the container has ended")

    with serving(place, tmp_path / "inside"):
        run = attached(tmp_path / "out")
        place.before = die
        assert read_manifest(run.save()).step > 40
    assert place.restarted == ["chief"]
    assert len(place.commands) == 2


def test_a_call_outlasts_a_platform_that_does_not_answer_for_a_while(place: Containers, tmp_path: Path) -> None:
    def restart() -> None:
        place.before = lambda: None
        away = LostPeerError("the engine does not answer")
        place.now(away, away, away, UP)
        raise LostPeerError("the container has ended")

    with serving(place, tmp_path / "inside"):
        run = attached(tmp_path / "out")
        place.before = restart
        assert read_manifest(run.save()).step > 40


def test_a_call_ends_with_its_run(place: Containers, tmp_path: Path) -> None:
    def end() -> None:
        place.now([PS, ended("chief", code=75), WORKER])
        raise LostPeerError("the container has ended")

    place.before = end
    run = attached(tmp_path)
    with pytest.raises(LostPeerError, match="small on compose: the run is failed at step 0, before `save` was done"):
        run.save()


def test_a_fleet_that_was_taken_down_during_a_call_has_ended(place: Containers, tmp_path: Path) -> None:
    def end() -> None:
        place.before = lambda: None
        place.now(UP, [])
        raise LostPeerError("the container has ended")

    place.before = end
    with pytest.raises(LostPeerError, match="no run is live here, before `save` was done"):
        attached(tmp_path).save()


def test_a_run_that_has_ended_takes_no_calls(place: Containers, tmp_path: Path) -> None:
    lines = log({"event": "verified", "step": 20, "message": ""}, {"step": 99, "message": "scheduled at step 99"})
    place._logs = {"chief": lines}
    place.now([PS, ended("chief"), WORKER])
    run = attached(tmp_path)
    assert (run.status, run.step) == ("done", 20)
    for call in (run.save, run.stop):
        with pytest.raises(UsageError, match="small on compose: the run is done at step 20; expected a run that"):
            call()


def test_a_stop_awaits_a_chief_that_is_started_again(place: Containers, tmp_path: Path) -> None:
    away = member("chief", state="restarting (75)", exit_code=75)
    place.now([away], [away], UP)
    run = attached(tmp_path)
    run.stop()
    assert place.asked_to_stop == ["chief"]


def test_a_stop_takes_down_a_fleet_whose_chief_would_be_started_again(
    place: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.restarts_stopped = True
    place._logs = {"chief": log({"event": "held", "step": 20, "message": ""})}
    monkeypatch.setattr(container_channel, "fetch", lambda *words: SimpleNamespace(report=DONE))
    run = attached(tmp_path)
    run.stop()
    assert (place.asked_to_stop, place.stopped, place.removed) == ([], ["chief"], [False])
    place.now([])
    assert (run.status, run.step) == ("stopped", 20)
    assert run.wait(timeout_secs=20).status == "done"


def test_a_run_that_the_handle_has_stopped_has_ended_with_its_chief(
    place: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that restarts stops its containers, too: any other chief that was stopped is watched for a while."""
    place.settle_secs = 1000.0
    monkeypatch.setattr(container_channel, "fetch", lambda *words: SimpleNamespace(report=DONE))
    run, other = attached(tmp_path), attached(tmp_path)
    run.stop()
    place.now([PS, ended("chief", code=143), WORKER])
    with pytest.raises(DeadlineError):
        other.wait(timeout_secs=0.2)
    assert run.wait(timeout_secs=20).status == "done"


def test_the_end_is_awaited_the_results_are_copied_and_the_fleet_is_removed(
    place: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[tuple[Any, ...]] = []

    def fetch(platform: Any, name: str, trained: Any, folder: Path, on: str) -> Any:
        copied.append((name, trained, folder, on))
        return SimpleNamespace(report=DONE)

    monkeypatch.setattr(container_channel, "fetch", fetch)
    over = [ended("ps"), ended("chief"), ended("worker", 1)]
    place.now(UP, UP, [killed("ps"), CHIEF, WORKER], over)
    report = attached(tmp_path).wait(timeout_secs=20)
    assert report.status == "done"
    assert place.restarted == ["ps-0"], "it does what `psfleet up` does meanwhile"
    assert copied == [("small", job(), tmp_path.resolve(), "compose")]
    assert place.removed == [False], "checkpoints and reports stay on the platform"


def test_a_fleet_that_another_command_follows_is_left_to_it(
    place: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_channel, "fetch", lambda *words: SimpleNamespace(report=DONE))
    place.now([ended("ps"), ended("chief"), ended("worker", 1)])
    run = attached(tmp_path)
    with following(place, "small"):
        assert run.wait(timeout_secs=20).status == "done"
    assert place.removed == []


def test_a_wait_has_a_deadline(place: Containers, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="the end of the run small on compose"):
        attached(tmp_path).wait(timeout_secs=0.2)


def test_a_start_marks_its_folder_which_stands_for_the_run(place: Containers, tmp_path: Path) -> None:
    place.now([])
    run = psfleet.start(job(), out=tmp_path / "out", program_folder=tmp_path, paused=True, on="compose")
    [request] = place.applied
    assert (request.job, request.job_file.parent, request.paused) == (job(), tmp_path, True)
    assert owner(run.folder) == Owner("small", "compose")
    place.now(UP)
    with serving(place, tmp_path / "inside"):
        assert psfleet.attach(tmp_path / "out").status == "training"
    with pytest.raises(UsageError, match="fleet small runs, expected one that is down: psfleet"):
        psfleet.start(job(), out=tmp_path / "out", on="compose")
    assert len(place.applied) == 1


def test_a_start_refuses_a_folder_with_a_copy_of_results_that_were_deleted(place: Containers, tmp_path: Path) -> None:
    place.now([])
    place.keeps_results = False
    with claimed(tmp_path / "out", job(), fresh=False, platform="compose") as folder:
        save(folder.path / "checkpoints", 10)
    with pytest.raises(UsageError, match="has a copy of a run whose results on compose were deleted"):
        psfleet.start(job(), out=tmp_path / "out", on="compose")
    assert place.applied == []
    psfleet.start(job(), out=tmp_path / "out", fresh=True, on="compose")
    assert (len(place.applied), newest(folder.path / "checkpoints")) == (1, None)


def test_what_is_no_run_has_no_handle(place: Containers, tmp_path: Path) -> None:
    place.now([])
    with pytest.raises(UsageError, match="no fleet small is in the script"):
        attached(tmp_path / "out")
    with claimed(tmp_path / "local", job(), fresh=False):
        pass
    with pytest.raises(UsageError, match="has a run on platform local, expected one on compose"):
        psfleet.attach(tmp_path / "local", on="compose")
    for call in (
        lambda: psfleet.attach(tmp_path / "local", namespace="here"),
        lambda: psfleet.start(job(), out=tmp_path / "local", context="here"),
    ):
        with pytest.raises(UsageError, match="='here': expected only with on='kubernetes'"):
            call()
