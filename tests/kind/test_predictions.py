"""`psfleet predict --on kubernetes`: the driver of a prediction and its workers as pods."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.compose_lab import commanded
from support.compose_prediction import arrays
from support.exported_run import PROGRAM, trained
from support.kind_fleet import RECOVERY_SECS, START_SECS, Space
from support.kind_store import make_secret, section
from support.programs import predicted_data
from support.s3_server import S3Server

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.polling import wait_until

pytestmark = pytest.mark.timeout(900)

STORE = "s3://fleet/run"
HELD = """\
import pathlib
import time

import tensorflow as tf
from predicted_data import features

HOLD = pathlib.Path("/tmp/hold")
HOLD.touch()

def held():
    def rows():
        yield from features()[:4]
        pathlib.Path("/tmp/reader").touch()
        while HOLD.exists():
            time.sleep(0.02)
        yield from features()[4:]

    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([2], tf.float32))
"""
"""A data set that is held in each new process, until the file is removed."""


def job_of(space: Space, name: str, **sections: object) -> Path:
    """A job file with its program and the data sets."""
    job = Path(
        space.job_file(name, program="versioned_program:keras_program", train={"steps": 3, "batch_size": 2}, **sections)
    )
    (job.parent / "versioned_program.py").write_text(PROGRAM)
    (job.parent / "held_data.py").write_text(HELD)
    shutil.copy(predicted_data.__file__, job.parent)
    return job


def trained_run(space: Space, name: str, **sections: object) -> Path:
    """The job file of a run whose results are on the cluster, and a copy of them in `runs`."""
    job = job_of(space, name, **sections)
    space.psfleet("up", str(job), secs=START_SECS)
    return job


def predicted_here(space: Space, job: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What processes of this machine predict with the copy of the results."""
    # The folder of the program in its pod is not on this machine.
    monkeypatch.setenv("PYTHONPATH", str(job.parent), prepend=os.pathsep)
    run, out = space.folder / "runs" / job.parent.name, space.folder / "here.npz"
    commanded("predict", str(run), "--data", "predicted_data:labelled", "--out", str(out), "--workers", "2")
    return arrays(out)


def readers(space: Space) -> dict[str, str]:
    """The pods of workers that read the held data set, by name, with their uids."""
    pods = [pod["metadata"] for pod in space.pods("worker") if pod["status"]["phase"] == "Running"]
    files = {pod["name"]: space.kubectl("exec", pod["name"], "--", "ls", "/tmp", check=False).split() for pod in pods}
    return {pod["name"]: pod["uid"] for pod in pods if "reader" in files[pod["name"]]}


def left(space: Space) -> set[str]:
    """What there is of fleets, but for the namespace's own objects."""
    kinds = "jobs,pods,services,networkpolicies,secrets,configmaps,pvc"
    return {name for name in space.kubectl("get", kinds, "-o", "name").split() if "kube-root-ca" not in name}


@pytest.mark.core
def test_the_file_is_that_of_processes_although_a_pod_is_killed(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    job, there = trained_run(space, "plain"), space.folder / "there.npz"
    command = ("predict", str(job), "--data", "held_data:held", "--out", str(there), "--workers", "2")
    process = space.start(*command)
    wait_until(lambda: len(readers(space)) == 2, START_SECS, "2 readers", poll_secs=1)
    before = readers(space)
    space.kubectl("delete", "pod", sorted(before)[0], "--wait=false")
    after = wait_until(
        lambda: readers(space), RECOVERY_SECS, "a reader in a new pod",
        done=lambda it: len(it) == 2 and it != before, poll_secs=1,
    )  # fmt: skip
    for name in after:
        space.kubectl("exec", name, "--", "rm", "/tmp/hold")
    code = wait_until(process.poll, START_SECS, "the prediction to end", done=lambda it: it is not None)
    said = space.printed(process)
    assert code == 0, said
    assert "is started again; its share is predicted again" in said
    assert "predictions float32 [10, 3] of step 3, by 2 workers" in " ".join(said.split())
    assert arrays(there) == predicted_here(space, job, monkeypatch)
    assert left(space) == {"persistentvolumeclaim/plain"}, "the results of the run stay"


def test_a_prediction_with_tls_continues_after_it_was_taken_down(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    job, there = trained_run(space, "closed", tls=True), space.folder / "there.npz"
    data = ("--out", str(there), "--workers", "2")
    process = space.start("predict", str(job), "--data", "held_data:held", *data)
    wait_until(lambda: len(readers(space)) == 2, START_SECS, "2 readers", poll_secs=1)
    space.psfleet("down", "closed-predict", "--results")
    assert process.wait(START_SECS) != 0
    assert left(space) == {"persistentvolumeclaim/closed"}, "down removes all but the results of the run"
    space.psfleet("predict", str(job), "--data", "predicted_data:labelled", *data, secs=START_SECS)
    assert arrays(there) == predicted_here(space, job, monkeypatch)
    assert left(space) == {"persistentvolumeclaim/closed"}


def test_a_folder_of_this_machine_is_refused_before_anything_starts(space: Space) -> None:
    (space.folder / "run").mkdir()
    trained(space.folder / "run")
    said = space.psfleet("predict", str(space.folder / "run"), "--data", "m:c", "--out", "o.npz", code=64)
    assert "on this machine, which pods cannot mount: expected the job or study file" in " ".join(said.split())
    assert left(space) == set()


def test_a_checkpoint_in_a_store_predicts(space: Space, s3: S3Server) -> None:
    (space.folder / "run").mkdir()
    (checkpoint,) = (trained(space.folder / "run") / "checkpoints").iterdir()
    for path in checkpoint.iterdir():
        (StoreFolder(STORE) / "checkpoints" / checkpoint.name / path.name).write_bytes(path.read_bytes())
    make_secret(space, s3)
    job = job_of(space, "stored", checkpoint={"store": STORE}, kubernetes=section(s3))
    there, here = space.folder / "there.npz", space.folder / "here.npz"
    data = ("--data", "predicted_data:labelled", "--workers", "2", "--out")
    space.psfleet("predict", str(job), *data, str(there), secs=START_SECS)
    shutil.copy(predicted_data.__file__, space.folder / "run")
    commanded("predict", STORE, *data, str(here))
    assert arrays(there) == arrays(here)
    assert left(space) == {"secret/models"}
