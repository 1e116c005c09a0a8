"""Which runs have nothing left to do, so that starting them again starts no process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.job.program_files import PROGRAM_DIGEST, digest, job_files
from psfleet.platforms.local import launcher
from psfleet.platforms.local.finished import finished_report, require_steps_left
from psfleet.platforms.local.launcher import train
from psfleet.report.last_evaluation import SKIPPED, not_in_time
from psfleet.report.records import Attempt
from psfleet.report.schema import BestInfo, CheckpointInfo, Event, Report
from psfleet.run_folder import claimed

JOB = {
    "name": "small",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 8, "batch_size": 1},
}


@pytest.fixture
def job() -> Job:
    return parse_job(JOB)


@pytest.fixture
def out(tmp_path: Path, job: Job) -> Path:
    """The folder of a run that is done; its program is beside it."""
    (tmp_path / "program.py").write_text("def build(): ...\n")
    out = tmp_path / "out"
    with claimed(out, job, fresh=False):
        extra = {"job": job.model_dump(mode="json"), PROGRAM_DIGEST: digest(job_files(job, tmp_path))}
        saved = save(out / "checkpoints", 8, extra=extra)
        write_report(out, checkpoint=CheckpointInfo(path=str(saved.folder), step=8))
    return out


def write_report(out: Path, **fields: Any) -> None:
    done = {"status": "done", "exit_code": 0, "name": "small", "run": "small-1", "mode": "sync"}
    Report(**{**done, "target_step": 8, "final_step": 8, **fields}).write(out)


def edit_report(out: Path, **fields: Any) -> None:
    Report.read(out).model_copy(update=fields).write(out)


def skipped(cause: str) -> Event:
    return Event(time=1.0, role="chief", index=0, kind=SKIPPED, cause=cause)


def test_a_run_that_is_done_and_has_not_changed_is_finished(out: Path, job: Job) -> None:
    assert finished_report(out, job, out.parent) == Report.read(out)


@pytest.mark.parametrize(
    "cause",
    ["not evaluated by the chief before this one: step 4", "not evaluated in time: step 4", not_in_time(80, "SIGTERM")],
)
def test_a_run_that_lacks_an_evaluation_before_its_last_one_is_finished(out: Path, job: Job, cause: str) -> None:
    """No further attempt would make it."""
    edit_report(out, events=[skipped(cause)])
    assert finished_report(out, job, out.parent) == Report.read(out)


@pytest.mark.parametrize(("started", "is_finished"), [(0.5, False), (1.5, True)])
def test_the_last_evaluation_is_missing_until_a_further_attempt_has_made_it(
    out: Path, job: Job, started: float, is_finished: bool
) -> None:
    """The report keeps the event, of time 1."""
    attempt = Attempt(run="small-1", started=started, status="done", exit_code=0)
    edit_report(out, events=[skipped(not_in_time(8, "stopped by SIGTERM"))], attempts=[attempt])
    assert (finished_report(out, job, out.parent) is not None) == is_finished


def test_a_finished_run_that_is_started_again_says_so_and_starts_nothing(
    out: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "Local", None)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    entries: list[Any] = []
    report = train(job, out=out, program_folder=out.parent, listener=entries.append)
    assert (report.status, report.exit_code, report.final_step) == ("done", 0, 8)
    [entry] = entries
    assert entry["message"].startswith("small: done already, step 8 is saved in ")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    with pytest.raises(TypeError, match="NoneType"):
        train(job, out=out, program_folder=out.parent, listener=entries.append, fresh=True)


def test_a_checkpoint_beyond_the_final_step_is_refused_before_anything_starts(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is that of the chief, to which it is left in any doubt."""
    monkeypatch.setattr(launcher, "Local", None)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    shorter = parse_job({**JOB, "train": {"steps": 7, "batch_size": 1}})
    found = out.resolve() / "checkpoints" / "00000008-g1"
    with pytest.raises(BadJobError) as refused:
        train(shorter, out=out, program_folder=out.parent, listener=lambda entry: None)
    assert str(refused.value) == (
        f"checkpoint {found} is at step 8, train.steps is 7; expected at least as many steps, or --fresh to train "
        "again from step 0"
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    with claimed(out, shorter, fresh=False, keeps=True):
        require_steps_left(out, shorter)
    require_steps_left(out, parse_job({**JOB, "name": "other"}))
    damage(out)
    require_steps_left(out, shorter)


def damage(out: Path) -> None:
    part = next((out / "checkpoints").rglob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1] + b"\x55")


@pytest.mark.parametrize(
    "change",
    [
        damage,
        lambda out: (out.parent / "program.py").write_text("def build(): return 1\n"),
        lambda out: (out / "report.json").unlink(),
        lambda out: (out / "report.json").write_text("{}"),
        lambda out: edit_report(out, status="failed", exit_code=75),
        lambda out: edit_report(out, final_step=7),
        lambda out: edit_report(out, checkpoint=None),
        lambda out: edit_report(out, stopped_early="loss has not improved"),
        lambda out: edit_report(out, events=[skipped(not_in_time(8, "stopped by SIGTERM"))]),
        lambda out: save(out / "checkpoints", 9),
        lambda out: (out / ".run").write_text(json.dumps({"name": "small", "platform": "compose"})),
        lambda out: edit_report(out, best=BestInfo(path=str(out / "gone"), step=4, metric="loss", value=0.1)),
    ],
    ids=[
        *("a damaged checkpoint", "another program", "no report", "no readable report", "a failure", "an earlier step"),
        *("no checkpoint", "an early stop", "no evaluation", "a newer checkpoint", "a run of another platform"),
        "no best checkpoint",
    ],
)
def test_in_any_doubt_a_run_is_not_finished(out: Path, job: Job, change: Callable[[Path], object]) -> None:
    change(out)
    assert finished_report(out, job, out.parent) is None


def test_a_run_of_another_job_or_one_that_goes_on_is_not_finished(out: Path, job: Job) -> None:
    longer, other = parse_job({**JOB, "train": {"steps": 9, "batch_size": 1}}), parse_job({**JOB, "name": "other"})
    faster = parse_job({**JOB, "optimizer": {"name": "sgd", "learning_rate": 0.2}})
    assert [finished_report(out, each, out.parent) for each in (longer, other, faster)] == [None] * 3
    with claimed(out, job, fresh=False, keeps=True):
        assert finished_report(out, job, out.parent) is None
    options = [parse_job({**JOB, "options": {"units": units}}) for units in (1, "1")]
    with claimed(out, options[0], fresh=True):
        extra = {"job": options[0].model_dump(mode="json"), PROGRAM_DIGEST: digest(job_files(job, out.parent))}
        saved = save(out / "checkpoints", 8, extra=extra)
        write_report(out, checkpoint=CheckpointInfo(path=str(saved.folder), step=8))
    assert [finished_report(out, each, out.parent) is not None for each in options] == [True, False]


def test_a_folder_that_cannot_be_looked_at_has_no_finished_run(job: Job, tmp_path: Path) -> None:
    """The message about it is that of `claimed`, with the exit code of usage."""
    assert finished_report(tmp_path / ("long" * 100), job, tmp_path) is None
