"""A run folder belongs to one run: whose files a run replaces, and whose it refuses."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from support.program_samples import sample_job

from psfleet.errors import UsageError
from psfleet.run_folder import LOCAL, Owner, check_owner, claimed, default_folder, owner

JOB = sample_job()
NOBODY = 65534
OTHER = JOB.model_copy(update={"name": "other"})


@pytest.mark.parametrize(
    ("file", "fresh"), [("logs/mine.txt", False), ("report.html", False), ("logs/a.log", True), ("checkpoints/a", True)]
)
def test_a_folder_that_no_run_has_written_is_refused_if_files_would_be_deleted(
    tmp_path: Path, file: str, fresh: bool
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine")
    top = Path(file).parts[0]
    with pytest.raises(UsageError, match=f"has {top}, which no run has written"), claimed(tmp_path, JOB, fresh):
        pytest.fail("claimed")
    assert (tmp_path / file).read_text() == "mine"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_job_file_of_this_name_is_not_taken_for_a_run_that_left_it(tmp_path: Path, fresh: bool) -> None:
    """`psfleet train job.json --out .`: the job file is JSON, and the logs beside it are the user's."""
    mine = {"job.json": '{"name": "sample"}', "logs/server.log": "mine"}
    (tmp_path / "logs").mkdir()
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    for _ in range(2):
        with (
            pytest.raises(UsageError, match=r"has job\.json, .*which no run has written"),
            claimed(tmp_path, JOB, fresh),
        ):
            pytest.fail("claimed")
    (tmp_path / "logs" / "server.log").unlink()
    with pytest.raises(UsageError, match=r"has job\.json, which no run has written"), claimed(tmp_path, JOB, fresh):
        pytest.fail("claimed")
    assert (tmp_path / "job.json").read_text() == mine["job.json"]


@pytest.mark.parametrize("file", ["notes.txt", "data/a.csv", "checkpoints/00000010-g1/manifest.json"])
def test_other_files_and_copied_checkpoints_do_not_keep_a_run_out(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("mine")
    for _ in range(2):
        with claimed(tmp_path, JOB, fresh=False):
            assert (tmp_path / file).read_text() == "mine"


def test_a_run_of_another_job_is_only_replaced_by_a_fresh_one(tmp_path: Path) -> None:
    with claimed(tmp_path, JOB, fresh=False):
        pass
    message = "has a run of job sample; expected another folder for job other, or --fresh"
    with pytest.raises(UsageError, match=message), claimed(tmp_path, OTHER, fresh=False):
        pytest.fail("claimed")
    with claimed(tmp_path, OTHER, fresh=True), pytest.raises(UsageError, match="another run is using it"):
        claimed(tmp_path, OTHER, fresh=False).__enter__()
    with claimed(tmp_path, OTHER, fresh=False):
        pass


@pytest.mark.parametrize(
    ("first", "second", "command"), [(LOCAL, "compose", "psfleet train"), ("kubernetes", LOCAL, "psfleet up --on kub")]
)
def test_a_run_with_checkpoints_is_continued_where_it_was(
    tmp_path: Path, first: str, second: str, command: str
) -> None:
    with claimed(tmp_path, JOB, fresh=False, platform=first):
        pass
    with claimed(tmp_path, JOB, fresh=False, platform=second):
        (tmp_path / "checkpoints" / "00000010-g1").mkdir(parents=True)
    message = f"has a run on platform {second}, which `"
    with pytest.raises(UsageError, match=message), claimed(tmp_path, JOB, fresh=False, platform=first):
        pytest.fail("claimed")
    with claimed(tmp_path, JOB, fresh=False, platform=second):
        pass
    with claimed(tmp_path, JOB, fresh=True, platform=first):
        (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UsageError, match=f"`{command}"), claimed(tmp_path, JOB, fresh=False, platform=second):
        pytest.fail("claimed")


def test_the_default_folder_is_not_that_of_a_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for platform in (LOCAL, "compose"):
        with claimed(default_folder("sample", platform), JOB, fresh=False, platform=platform) as folder:
            (folder.path / "checkpoints").mkdir()
    assert sorted(path.name for path in Path("runs").iterdir()) == ["sample", "sample-compose"]
    assert [default_folder("sample", platform).name for platform in (LOCAL, "compose", "kubernetes")] == [
        "sample",
        "sample-compose",
        "sample-kubernetes",
    ]
    shutil.rmtree("runs/sample")
    assert default_folder("sample", "compose").name == "sample-compose", "its run is there"


def test_a_folder_that_this_user_cannot_enter_is_no_run(tmp_path: Path) -> None:
    """Other users' runs beside one's own, in a folder that several users share."""
    with claimed(tmp_path / "theirs", JOB, fresh=False):
        pass
    (tmp_path / "theirs").chmod(0o000)
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(OSError):
            if os.getuid() == 0:
                # Root enters every folder.
                os.setuid(NOBODY)
            code = 0 if owner(tmp_path / "theirs") is None else 1
        os._exit(code)
    _, status = os.waitpid(child, 0)
    (tmp_path / "theirs").chmod(0o700)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_folder_that_cannot_be_entered_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_dir(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", is_dir)
    with pytest.raises(UsageError, match=r"--out .*theirs: Permission denied, expected a folder that can"):
        check_owner(tmp_path / "theirs", JOB, fresh=False, platform=LOCAL)


def test_a_folder_that_a_full_disk_has_refused_to_a_run_can_be_used_afterwards(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(UsageError, match="File too large"), claimed(tmp_path, JOB, fresh=False):
            pytest.fail("claimed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with claimed(tmp_path, JOB, fresh=False) as folder:
        assert owner(folder.path) == Owner(JOB.name, LOCAL)
