"""When `psfleet up`, `scale` and `down` act on a fleet, and when they refuse to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.activity_samples import ACTIVITY
from support.checkpoint_samples import save
from support.scripted_platform import ScriptedPlatform, ended, job, member

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job
from psfleet.launch.platform import Member, Request
from psfleet.launch.scale import scale
from psfleet.launch.up import down, remove, start

REQUEST = Request(job(), Path("job.yaml"))
FRESH = Request(job(), Path("job.yaml"), fresh=True)
STUDY = Request(job(), Path("job.yaml"), activity=ACTIVITY)
OTHER = Request(job(train={"steps": 7, "batch_size": 2}), Path("job.yaml"))


@pytest.mark.parametrize(
    ("members", "request_", "is_applied"),
    [
        ([], REQUEST, True),
        ([member("chief", state="created")], REQUEST, True),
        ([member("chief")], REQUEST, False),
        ([ended("chief")], REQUEST, False),
        ([ended("chief")], FRESH, True),
        ([ended("chief")], OTHER, True),
        ([ended("chief", 0, 70)], REQUEST, False),
        ([ended("chief", 0, 143), ended("worker", 1, 70)], REQUEST, False),
        ([ended("chief", 0, 143), ended("worker", 1, 78)], REQUEST, True),
        ([ended("chief", 0, 75)], REQUEST, True),
    ],
    ids=["none", "created", "runs", "done", "fresh", "other", "failed", "worker failed", "worker refused", "lost"],
)
def test_a_fleet_is_started_unless_it_runs_or_its_results_wait(
    members: list[Member], request_: Request, is_applied: bool
) -> None:
    platform = ScriptedPlatform(members)
    start(platform, request_)
    assert bool(platform.applied) is is_applied


def test_a_fresh_fleet_finds_an_empty_store(bucket: StoreFolder) -> None:
    """Deleted afterwards, the checkpoints could be those of the new fleet."""
    root = bucket / "run" / "checkpoints"
    save(root, 10)
    stored = job(checkpoint={"store": f"{bucket}/run"})
    left: list[int] = []

    class Platform(ScriptedPlatform):
        def apply(self, request: Request) -> None:
            left.append(len(root.iterdir()))

    start(Platform([]), Request(stored, Path("job.yaml")))
    start(Platform([]), Request(stored, Path("job.yaml"), fresh=True))
    assert left == [1, 0]


def test_a_fresh_fleet_that_the_platform_refuses_deletes_nothing(bucket: StoreFolder, tmp_path: Path) -> None:
    root = bucket / "run" / "checkpoints"
    save(root, 10)
    stored = job(checkpoint={"store": f"{bucket}/run"})
    request_ = Request(stored, tmp_path / "job.yaml", fresh=True, fleet="large")

    class Refusing(ScriptedPlatform):
        def check(self, request: Request) -> None:
            raise UsageError(f"--fleet {request.fleet}: no such fleet")

    with pytest.raises(UsageError, match="--fleet large: no such fleet"):
        start(Refusing([]), request_)
    assert len(root.iterdir()) == 1


@pytest.mark.parametrize(("request_", "expected"), [(FRESH, "--fresh: fleet small runs"), (OTHER, "another version")])
def test_a_fleet_that_trains_is_not_replaced(request_: Request, expected: str) -> None:
    platform = ScriptedPlatform([member("chief")])
    with pytest.raises(UsageError, match=expected):
        start(platform, request_)
    assert platform.applied == []


def test_a_fleet_is_scaled_within_its_quorum_and_its_slots() -> None:
    platform = ScriptedPlatform([member("chief")])
    scale(platform, "small", 6)
    assert platform.scaled == [6]
    for workers in (1, 7):
        with pytest.raises(UsageError, match=f"--workers {workers}: expected 2 to 6"):
            scale(platform, "small", workers)
    with pytest.raises(UsageError, match="fleet small does not run"):
        scale(ScriptedPlatform([ended("chief")]), "small", 3)


def test_the_number_of_loaders_changes_up_to_that_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = ScriptedPlatform([member("chief")])
    monkeypatch.setattr(platform, "job", lambda name: job(input={"from": "loaders"}))
    for loaders in (6, 1):
        scale(platform, "small", loaders=loaders)
    scale(platform, "small", 3, 2)
    assert (platform.scaled, platform.scaled_loaders) == ([3], [6, 1, 2])
    with pytest.raises(UsageError, match=r"--loaders 7: expected 1 to 6, fleet\.max_workers"):
        scale(platform, "small", loaders=7)
    with pytest.raises(UsageError, match="fleet small does not run"):
        scale(ScriptedPlatform([ended("chief")]), "small", loaders=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"from": "worker"}, "--loaders 2: input.from is worker, expected loaders"),
        ({"from": "loaders", "sharding": "dynamic"}, "input.sharding is dynamic, expected static"),
    ],
)
def test_a_fleet_without_loaders_or_whose_loaders_have_parts_gets_no_others(
    content: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = ScriptedPlatform([member("chief")])
    monkeypatch.setattr(platform, "job", lambda name: job(input=content))
    with pytest.raises(UsageError, match=message):
        scale(platform, "small", workers=3, loaders=2)
    assert platform.scaled == []


@pytest.mark.parametrize(
    "made",
    [
        job(update={"replication": "in_graph"}, fleet={"workers": 4}),
        job(update={"mode": "async"}, fleet={"workers": 4, "parts": 2}),
    ],
    ids=["in_graph", "parts"],
)
def test_a_fleet_whose_graphs_name_their_workers_is_not_scaled(made: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = ScriptedPlatform([member("chief")])
    monkeypatch.setattr(platform, "job", lambda name: made)
    for workers in (3, 5):
        with pytest.raises(UsageError, match=f"--workers {workers}: expected 4 to 4, .* the workers of its graphs"):
            scale(platform, "small", workers)


def test_a_chief_that_runs_is_stopped_before_its_fleet_is_removed() -> None:
    platform = ScriptedPlatform([member("chief"), member("ps")])
    down(platform, "small", results=True)
    assert (platform.stopped, platform.removed) == (["chief"], [True])
    over = ScriptedPlatform([ended("chief")])
    down(over, "small", results=False)
    assert (over.stopped, over.removed) == ([], [False])


@pytest.mark.parametrize("error", [UsageError("no ConfigMap"), BadJobError("no JSON")])
def test_a_fleet_whose_job_cannot_be_read_is_taken_down(error: Exception) -> None:
    platform = ScriptedPlatform([member("chief")])
    platform.job_error = error
    down(platform, "small", results=False)
    assert (platform.stopped, platform.removed) == (["chief"], [False])


def test_what_is_not_there_cannot_be_taken_down() -> None:
    with pytest.raises(UsageError, match="no fleet small"):
        down(ScriptedPlatform([]), "small", results=False)


def test_a_fleet_that_the_platform_removed_while_its_results_were_copied_is_no_error() -> None:
    assert remove(ScriptedPlatform([]), "small") is False


@pytest.mark.parametrize("end", [member, ended], ids=["runs", "ended"])
@pytest.mark.parametrize(("activity", "request_"), [("study", REQUEST), ("", STUDY)], ids=["study", "run"])
def test_a_run_and_a_study_of_one_name_are_not_mixed(
    end: Callable[..., Member], activity: str, request_: Request
) -> None:
    platform = ScriptedPlatform([end("chief", activity=activity)])
    with pytest.raises(UsageError, match=r"fleet small is in the script as a .*, expected another name for a "):
        start(platform, request_)
    assert platform.applied == []


def test_a_study_cannot_be_scaled() -> None:
    platform = ScriptedPlatform([member("chief", activity="study")])
    with pytest.raises(UsageError, match="fleet small is a study, expected a training run"):
        scale(platform, "small", 2)
    assert platform.scaled == []
