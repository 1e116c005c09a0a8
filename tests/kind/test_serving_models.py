"""`psfleet serve --on kubernetes`: models of this machine, copied to a claim of the service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from support.asking import FIRST, runs
from support.compose_lab import commanded
from support.exported_run import PROGRAM, X
from support.kind_fleet import START_SECS, Space
from support.kind_service import KindService
from support.kind_store import make_secret, section
from support.s3_server import S3Server
from support.swept_study import SweptStudy

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.polling import wait_until

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]

STORE = "s3://fleet/run"
OPTIONS = ("--timeout-secs", "10")


def await_both(service: KindService, rows: np.ndarray) -> np.ndarray:
    """The output of an answer of both members."""
    wait_until(
        lambda: service.asked(rows)[1].get("parameters"), START_SECS, "an answer of both members",
        done=lambda found: found == {"members": "2 of 2"}, poll_secs=1,
    )  # fmt: skip
    return np.array(service.asked(rows)[1]["outputs"][0]["data"])


def left(space: Space) -> list[str]:
    found = space.kubectl("get", "deployments,pods,services,secrets,networkpolicies,pvc", "-o", "name")
    return found.split()


def test_run_folders_are_an_ensemble_whose_copies_go_with_it(space: Space) -> None:
    names = runs(space.folder)
    service = KindService(space, tuple(space.folder / name for name in names), "local")
    service.serve("--name", "local", *OPTIONS)
    with service.connected():
        np.testing.assert_allclose(await_both(service, X).reshape(3, 3), 2 * FIRST, rtol=1e-6)
    assert "persistentvolumeclaim/local-serve" in left(space)
    assert not [name for name in left(space) if "models" in name], "the pod that wrote them has ended"
    space.psfleet("down", service.name, secs=START_SECS)
    assert left(space) == []


def test_the_best_trials_of_a_study_are_an_ensemble(space: Space) -> None:
    choices = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}
    (space.folder / "study").mkdir()
    study = SweptStudy.make(space.folder / "study", choices, {"predicts": True})
    file, out = study.folder / "study.yaml", space.folder / "studies" / "swept"
    commanded("sweep", str(file), "--out", str(out))
    weights = [safetensors.numpy.load_file(path)["w"] for path in (out / "weights").iterdir()]
    service = KindService(space, (file,), "swept")
    service.serve("--top", "2", *OPTIONS)
    rows = np.array([1, 2, 4], np.float32)
    with service.connected(rows):
        np.testing.assert_allclose(await_both(service, rows), np.mean(weights) * rows, rtol=1e-5)
    space.psfleet("down", service.name, secs=START_SECS)
    assert left(space) == []


def test_a_checkpoint_in_a_store_is_served(space: Space, s3: S3Server) -> None:
    (run, _) = runs(space.folder)
    for checkpoint in (space.folder / run / "checkpoints").iterdir():
        for path in checkpoint.iterdir():
            (StoreFolder(STORE) / "checkpoints" / checkpoint.name / path.name).write_bytes(path.read_bytes())
    make_secret(space, s3)
    store = {"checkpoint": {"store": STORE}, "kubernetes": section(s3)}
    job = Path(space.job_file("stored", program="versioned_program:keras_program", **store))
    (job.parent / "versioned_program.py").write_text(PROGRAM)
    service = KindService(space, (job,), "stored")
    service.serve(*OPTIONS)
    with service.connected():
        found = np.array(service.asked()[1]["outputs"][0]["data"]).reshape(3, 3)
    np.testing.assert_allclose(found, FIRST, rtol=1e-6)
    space.psfleet("down", service.name, secs=START_SECS)
    assert left(space) == ["secret/models"]
