"""What becomes of a run's results on their way out of the volume: no success that is not proved."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from docker.errors import NotFound
from support import compose_samples
from support.checkpoint_samples import save

from psfleet.errors import DONE, LOST_PEERS, NO_CHECKPOINT, PROGRAM_FAILED
from psfleet.job.job import parse_job
from psfleet.launch.compose.members import Member
from psfleet.launch.compose.results import collect
from psfleet.report.schema import CheckpointInfo, Report
from psfleet.run_folder import claimed

STEPS = 20
JOB = parse_job(
    {
        "name": "small",
        "program": "program:build",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": STEPS, "batch_size": 2},
    }
)
CREATED = 1_700_000_000
FAILED = (
    '{"time": 1.0, "event": "failed", "exit_code": 70, "role": "worker", "index": 1, "message": "raised ValueError"}\n'
)


def text(time: float) -> str:
    """A time as the engine writes it."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


def member(role: str, volume: Path, log: str = "", **state: Any) -> Member:
    """An ended container of a fleet whose volume is a folder."""

    def get_archive(path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        source = volume / path.removeprefix("/out/")
        if not source.exists():
            raise NotFound(path)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(source, arcname=source.name)
        chunks = iter([packed.getvalue()[at : at + 1000] for at in range(0, len(packed.getvalue()), 1000)])
        return chunks, {"mtime": text(source.stat().st_mtime)}

    ended = {"Status": "exited", **state}
    return compose_samples.member(role, log, get_archive, State=ended, Created=text(CREATED))


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Of a run that is done, with its report and its checkpoint."""
    folder = tmp_path / "volume"
    saved = save(folder / "checkpoints", STEPS)
    leave(folder, checkpoint=CheckpointInfo(path=f"/out/checkpoints/{saved.folder.name}", step=STEPS))
    return folder


def leave(folder: Path, time: float = CREATED + 10, **changes: Any) -> None:
    """The chief's report, written at a time."""
    content = {"status": "done", "exit_code": 0, "name": "small", "run": "small", "mode": "sync", "target_step": STEPS}
    path = Report(**{**content, "final_step": STEPS, **changes}).write(folder)
    os.utime(path, (time, time))


def results(tmp_path: Path, *found: Member) -> Report:
    """The report of a fleet; the chief comes first."""
    with claimed(tmp_path / "out", JOB, fresh=False) as folder:
        return collect(found, found[0], JOB, folder)


def test_a_done_run_is_done_and_its_checkpoint_is_the_copy(tmp_path: Path, volume: Path) -> None:
    report = results(tmp_path, member("chief", volume), member("ps", volume, log="served\n"))
    assert (report.status, report.exit_code) == ("done", DONE)
    assert report.checkpoint is not None
    assert Path(report.checkpoint.path) == tmp_path / "out" / "checkpoints" / f"{STEPS:08}-g1"
    assert Report.read(tmp_path / "out") == report
    assert (tmp_path / "out" / "logs" / "ps-0.log").read_text() == "served\n"


def test_the_log_of_a_container_that_still_runs_is_taken_as_it_is(tmp_path: Path, volume: Path) -> None:
    running = member("worker", volume, log='{"index": 1, "message": "joined"}\n', Status="running")
    assert results(tmp_path, member("chief", volume), running).status == "done"
    assert "joined" in (tmp_path / "out" / "logs" / "worker-1.log").read_text()


def test_a_copy_that_is_not_whole_is_no_success(tmp_path: Path, volume: Path) -> None:
    part = next((volume / "checkpoints" / f"{STEPS:08}-g1").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1])
    report = results(tmp_path, member("chief", volume))
    assert (report.status, report.exit_code) == ("failed", NO_CHECKPOINT)


def test_a_checkpoint_before_the_target_is_no_success(tmp_path: Path, volume: Path) -> None:
    saved = save(volume / "checkpoints", STEPS - 1)
    leave(volume, checkpoint=CheckpointInfo(path=f"/out/checkpoints/{saved.folder.name}", step=STEPS))
    assert results(tmp_path, member("chief", volume)).exit_code == NO_CHECKPOINT


def test_the_report_of_an_earlier_start_is_none(tmp_path: Path, volume: Path) -> None:
    os.utime(volume / "report.json", (CREATED - 10, CREATED - 10))
    report = results(tmp_path, member("chief", volume))
    assert report.exit_code != DONE
    assert report.error == "the chief left no report"


def test_a_chief_that_did_not_end_as_its_report_says_is_no_success(tmp_path: Path, volume: Path) -> None:
    report = results(tmp_path, member("chief", volume, ExitCode=137, OOMKilled=True))
    assert (report.status, report.exit_code) == ("failed", LOST_PEERS)
    assert report.error == "the chief was killed: out of memory, the limit is 1 GiB"


def test_the_first_process_that_said_why_is_the_cause_of_a_run_without_a_report(tmp_path: Path) -> None:
    chief = member("chief", tmp_path / "nothing", ExitCode=PROGRAM_FAILED)
    report = results(tmp_path, chief, member("ps", tmp_path / "nothing", log=FAILED, ExitCode=PROGRAM_FAILED))
    assert (report.status, report.exit_code, report.error) == ("failed", 70, "worker 1: raised ValueError")


def test_a_run_that_was_stopped_because_a_ps_was_gone_for_good_failed_of_that(tmp_path: Path, volume: Path) -> None:
    leave(volume, status="stopped", exit_code=143, error="stopped by signal 15")
    chief = member("chief", volume, ExitCode=143)
    report = results(tmp_path, chief, member("ps", volume, ExitCode=137, OOMKilled=True))
    assert (report.status, report.exit_code) == ("failed", LOST_PEERS)
    assert report.error is not None
    assert "psfleet-small-ps-0-1 was killed: out of memory" in report.error


def test_a_run_that_was_stopped_is_stopped(tmp_path: Path, volume: Path) -> None:
    leave(volume, status="stopped", exit_code=143, error="stopped by signal 15")
    report = results(tmp_path, member("chief", volume, ExitCode=143), member("ps", volume, ExitCode=143))
    assert (report.status, report.exit_code) == ("stopped", 143)
