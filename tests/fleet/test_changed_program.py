"""A program that changes under a running fleet is refused; a run that was stopped may be resumed with another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.tiny_job import JOB, PRELUDE, entries

import psfleet
from psfleet import errors
from psfleet.checkpoint import store
from psfleet.launch import watcher

pytestmark = pytest.mark.usefixtures("launches_forked")

LEAVE_SECS = 1.0
"""Instead of `watcher.LEAVE_SECS`, of which two pass: a chief without its quorum does not end before."""
CHANGES = """
import os
import signal
import threading
from pathlib import Path

SOURCE = Path(__file__)
IS_CHANGED = SOURCE.read_text().endswith("# changed\\n")
FOREVER = threading.Event()

def rows(shard):
    for row in x:
        FOREVER.wait(0.01)
        if shard == 1 and not IS_CHANGED and list(SOURCE.parent.glob("out/checkpoints/*2-g1/manifest.json")):
            with SOURCE.open("a") as file:
                file.write("# changed\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        yield row

def data(shard, shards):
    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([2]), args=[shard])
"""
"""Worker 1 changes the program once there is a checkpoint, and is killed."""


@pytest.mark.extended
def test_a_worker_with_a_changed_program_ends_the_run_which_then_resumes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LEAVE_SECS", LEAVE_SECS)
    program = tmp_path / "program.py"
    program.write_text(PRELUDE + CHANGES)
    report = trained(tmp_path, workers=2, steps=2000)
    assert report.exit_code == errors.BAD_JOB
    assert report.error is not None
    assert f"{program.name} differs" in report.error
    [failed] = [
        entry for entry in entries(tmp_path / "out" / "logs" / "worker-1.log") if entry.get("event") == "failed"
    ]
    assert failed["exit_code"] == errors.BAD_JOB
    newest = store.newest(tmp_path / "out" / "checkpoints")
    assert newest is not None
    assert newest.step >= 2

    report = trained(tmp_path, workers=1, steps=newest.step + 10)
    assert (report.status, report.final_step) == ("done", newest.step + 10)
    assert [event.kind for event in report.events] == ["program_changed"]
    log = entries(tmp_path / "out" / "logs" / "worker-0.log")
    [event] = [entry for entry in log if entry.get("event") == "program_changed"]
    assert f"step {newest.step} was trained by a program with digest" in event["message"]


def trained(folder: Path, workers: int, steps: int) -> psfleet.Report:
    """Trains the program in a folder; the report."""
    job = yaml.safe_load(JOB)
    job["fleet"]["workers"] = workers
    job["train"]["steps"] = steps
    job["checkpoint"] = {"every_steps": 2}
    return psfleet.train(job, out=folder / "out", program_folder=folder)
