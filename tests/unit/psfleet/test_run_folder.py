"""The run folder: what a new run in it keeps, and who may use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from psfleet import run_folder
from psfleet.errors import UsageError
from psfleet.job.job import Job, parse_job
from psfleet.run_folder import RunFolder, claimed, is_locked


@pytest.fixture
def job() -> Job:
    return parse_job(
        {
            "name": "tiny",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 10, "batch_size": 4},
        }
    )


LEFT_BY_A_RUN = (
    "checkpoints/00000010-g1/manifest.json",
    "tensorboard/events.out.tfevents.1",
    "history.jsonl",
    "evaluations.jsonl",
    "training_metrics.jsonl",
    "events.jsonl",
    "report.json",
    "report.html",
)
LEFT_BY_A_START = ("logs/ps-0.log", ".report.json", ".committed")
OF_THE_USER = (
    "notes.txt",
    "logs/notes.txt",
    "checkpoints/w.h5",
    "checkpoints/my-own-gigabytes/a",
    "tensorboard/mine/events.1",
    "data/examples.csv",
    "checkpoints-of-mine/a",
)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A folder after a run, with files of the user's own."""
    for name in (*LEFT_BY_A_RUN, *LEFT_BY_A_START, *OF_THE_USER):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "job.json").write_text('{"name": "tiny"}')
    (tmp_path / ".lock").touch()
    return tmp_path


def kept(folder: Path, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (folder / name).exists()]


def test_a_claimed_folder_has_the_job_and_a_place_for_logs(job: Job, tmp_path: Path) -> None:
    with claimed(tmp_path / "runs" / "tiny", job, fresh=False) as folder:
        assert folder == RunFolder((tmp_path / "runs" / "tiny").resolve())
        assert Job.model_validate_json(folder.job.read_text()) == job
        assert folder.log("ps", 1).parent.is_dir()
        assert folder.log("ps", 1).name == "ps-1.log"


def test_a_run_that_is_resumed_keeps_all_but_the_last_start(job: Job, used: Path) -> None:
    with claimed(used, job, fresh=False):
        assert kept(used, LEFT_BY_A_START) == []
        assert kept(used, (*LEFT_BY_A_RUN, *OF_THE_USER)) == [*LEFT_BY_A_RUN, *OF_THE_USER]


def test_a_fresh_run_deletes_what_runs_leave_and_nothing_of_the_users(job: Job, used: Path) -> None:
    with claimed(used, job, fresh=True):
        assert kept(used, (*LEFT_BY_A_RUN, *LEFT_BY_A_START)) == []
        assert kept(used, OF_THE_USER) == list(OF_THE_USER)


def test_a_folder_is_claimed_by_one_run_at_a_time_and_free_afterwards(job: Job, used: Path) -> None:
    with (
        claimed(used, job, fresh=False),
        pytest.raises(UsageError, match=f"--out {used}: another run is using it"),
        claimed(used, job, fresh=True),
    ):
        pytest.fail("claimed twice")
    assert kept(used, LEFT_BY_A_RUN) == list(LEFT_BY_A_RUN), "the run that was refused deleted something"
    with claimed(used, job, fresh=False):
        pass


def test_a_listing_that_looks_at_the_lock_refuses_no_run(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_locked` holds the lock for a moment."""
    assert not is_locked(tmp_path), "there is no lock yet"
    with claimed(tmp_path, job, fresh=False):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    real, busy = run_folder.try_lock, iter([True, True])
    monkeypatch.setattr(run_folder, "try_lock", lambda lock, kind: not next(busy, False) and real(lock, kind))
    with claimed(tmp_path, job, fresh=False):
        assert next(busy, None) is None


@pytest.mark.parametrize("out", ["file", "file/below", "folder-as-lock"])
def test_a_folder_that_cannot_be_written_is_named(job: Job, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder-as-lock" / ".lock").mkdir(parents=True)
    with (
        pytest.raises(UsageError, match=f"^--out {tmp_path / out}: .*, expected a folder that can be written$"),
        claimed(tmp_path / out, job, fresh=False),
    ):
        pytest.fail("claimed")


def test_a_folder_whose_path_is_not_utf8_is_refused(job: Job, tmp_path: Path) -> None:
    """Messages and reports have paths as text."""
    path = tmp_path / os.fsdecode(b"r\xff")
    with pytest.raises(UsageError, match="is not UTF-8"), claimed(path, job, fresh=False):
        pass
    assert not path.exists()
