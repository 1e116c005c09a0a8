"""The folder of a run on a platform: results that are copied to it do not mix with those of a deleted run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoint_samples import save
from support.scripted_platform import ScriptedPlatform, job, member

from psfleet.errors import UsageError
from psfleet.launch.platform import Member
from psfleet.launch.results_folder import require_usable
from psfleet.run_folder import claimed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run whose results were copied."""
    with claimed(tmp_path / "out", job(), fresh=False, platform="scripted") as found:
        save(found.path / "checkpoints", 20)
    return found.path


def platform(*members: Member, has_results: bool = False) -> ScriptedPlatform:
    found = ScriptedPlatform(members)
    found.keeps_results = has_results
    return found


def test_a_copy_of_results_that_were_deleted_is_refused(folder: Path) -> None:
    expected = f"--out {folder}: has a copy of a run whose results on scripted were deleted, .* or --fresh to delete"
    with pytest.raises(UsageError, match=expected):
        require_usable(platform(), job(), folder, False, "scripted")


@pytest.mark.parametrize(
    ("place", "fresh"),
    [(platform(has_results=True), False), (platform(member("chief")), False), (platform(), True)],
    ids=["resumed", "attached to", "fresh"],
)
def test_a_copy_of_a_run_is_continued_or_deleted(folder: Path, place: ScriptedPlatform, fresh: bool) -> None:
    require_usable(place, job(), folder, fresh, "scripted")


def test_a_folder_without_checkpoints_can_be_used(tmp_path: Path) -> None:
    require_usable(platform(), job(), tmp_path / "new", False, "scripted")
    with claimed(tmp_path / "new", job(), fresh=False, platform="scripted"):
        pass
    require_usable(platform(), job(), tmp_path / "new", False, "scripted")


def test_a_run_with_a_store_resumes_from_there(folder: Path) -> None:
    require_usable(platform(), job(checkpoint={"store": "s3://bucket/run"}), folder, False, "scripted")


def test_a_folder_of_another_job_is_refused(folder: Path) -> None:
    other = job().model_copy(update={"name": "other"})
    with pytest.raises(UsageError, match="has a run of job small; expected another folder for job other"):
        require_usable(platform(has_results=True), other, folder, False, "scripted")
