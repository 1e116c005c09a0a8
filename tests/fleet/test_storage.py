"""What a fleet does when its checkpoints vanish or cannot be written while it trains."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.local_fleet import START_SECS, training
from support.service_process import running
from support.tiny_job import PRELUDE

from psfleet import errors
from psfleet.job.job import parse_job
from psfleet.report.schema import EventLog


@pytest.mark.extended
def test_a_run_whose_checkpoints_were_deleted_ends_when_a_ps_dies(tmp_path: Path) -> None:
    with training(tmp_path, fleet={"workers": 1}, train={"steps": 2000}, checkpoint={"every_secs": 600}) as fleet:
        fleet.wait_for_step(10)
        shutil.rmtree(fleet.out / "checkpoints")
        fleet.kill("ps", 0)
        assert fleet.end(START_SECS) == errors.NO_CHECKPOINT, fleet.tails()
        report = fleet.report()
        assert (report.status, report.exit_code) == ("failed", errors.NO_CHECKPOINT)
        assert f"steps were trained, but {fleet.out / 'checkpoints'} has no checkpoint" in (report.error or "")
        assert not (fleet.out / "checkpoints").exists()


class SmallDisk:
    """A file system of 256 KiB."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Uses all of its space."""
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def clear(self) -> None:
        """Frees its space."""
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mounts a small file system for the run's checkpoints; skips the test where that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this system has no mount command")
    if done.returncode:
        pytest.skip(f"mounting a small file system needs more privileges: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.extended
def test_a_run_survives_a_full_disk_and_keeps_its_last_step_until_there_is_space(tmp_path: Path) -> None:
    """Every part of the run is refused from step 20 on, that of the final step included."""
    checkpoint = {"every_steps": 10, "keep": 2}
    with (
        small_disk(tmp_path / "out" / "checkpoints") as disk,
        training(tmp_path, fleet={"workers": 1}, train={"steps": 60}, checkpoint=checkpoint) as fleet,
    ):
        fleet.wait_for_step(20)
        disk.fill()
        events = EventLog(fleet.out / EventLog.FILE_NAME)
        fleet.wait_for(lambda: [event for event in events.read() if event.role == "ps"], START_SECS, "the event")
        assert fleet.step() < 60
        fleet.wait_for(
            lambda: "No space left on device" in fleet.screen.read_text(), START_SECS, "the line on the screen"
        )
        fleet.gates.hurry()
        waits = "trying again"
        fleet.wait_for(lambda: [e for e in fleet.log("ps") if waits in e["message"]], START_SECS, "the last part")
        disk.clear()
        assert fleet.end() == 0, fleet.tails()
        report = fleet.report()
        assert (report.status, report.final_step) == ("done", 60)
        assert fleet.checkpoint().step == 60
        assert ("checkpoint_failed", "ps") in {(event.kind, event.role) for event in report.events}
        assert all("No space left on device" in event.cause for event in report.events)


@pytest.mark.extended
def test_a_disk_that_never_gives_the_checkpoint_ends_every_process_with_75_and_is_named(tmp_path: Path) -> None:
    """The manifest is a pipe that nobody writes to: its reader waits, as for a file server that is gone."""
    (tmp_path / "program.py").write_text(PRELUDE)
    manifest = tmp_path / "checkpoints" / "00000040-g1" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    os.mkfifo(manifest)
    job = {
        "name": "hung",
        "program": "program:build",
        "fleet": {"ps": 1, "workers": 1},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 20, "batch_size": 4},
        "deadlines": {"stall_secs": 3, "first_batch_secs": 60},
    }
    env = {"JOB": parse_job(job).model_dump_json(), "RUN": "hung", "PROGRAM_FOLDER": str(tmp_path), "INDEX": "0"}
    with running("ps", tmp_path, **env) as ps:
        with running("worker", tmp_path, PS=ps.serving().address.data, **env) as chief:
            assert chief.exit_code(START_SECS) == errors.LOST_PEERS, chief.entries()
        assert ps.exit_code(START_SECS) == errors.LOST_PEERS, ps.entries()
    assert [entry["message"] for entry in chief.failures()] == [
        f"the disk has not answered for 3 s to a read of {tmp_path}"
    ]
