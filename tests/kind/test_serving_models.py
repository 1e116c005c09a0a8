"""`psfleet serve --on kubernetes`: models of this machine, copied to a claim of the service."""

from __future__ import annotations

import json
import operator
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import safetensors.numpy
from support.asking import FIRST, runs
from support.compose_lab import commanded
from support.exported_run import BIAS, KERNEL, PROGRAM, X, with_checkpoint
from support.kind_fleet import COMMAND_SECS, START_SECS, Space
from support.kind_service import TOKEN, KindService
from support.kind_store import make_secret, section
from support.s3_server import S3Server
from support.swept_study import SweptStudy

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.polling import wait_until
from psfleet.tls.signing import new_authority, new_certificate, private_pem, public_pem

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


def weights_in(out: Path) -> list[np.ndarray]:
    """Of the trials in the folder of a study's results."""
    return [safetensors.numpy.load_file(path)["w"] for path in (out / "weights").iterdir()]


def serve_both(space: Space, study: Path, weights: list[np.ndarray]) -> None:
    """Serves both trials of a study, whose answer has the mean of these weights, and ends the service."""
    service = KindService(space, (study,), "swept")
    service.serve("--top", "2", *OPTIONS)
    rows = np.array([1, 2, 4], np.float32)
    with service.connected(rows):
        np.testing.assert_allclose(await_both(service, rows), np.mean(weights) * rows, rtol=1e-5)
    space.psfleet("down", service.name, secs=START_SECS)


def test_run_folders_are_an_ensemble_whose_copies_go_with_it(space: Space) -> None:
    names = runs(space.folder)
    service = KindService(space, tuple(space.folder / name for name in names), "local")
    service.serve("--name", "local", *OPTIONS)
    with service.connected():
        np.testing.assert_allclose(await_both(service, X).reshape(3, 3), 2 * FIRST, rtol=1e-6)
        for name in names:
            with_checkpoint(space.folder / name, 5, 7 * KERNEL, 7 * BIAS)
        service.serve("--name", "local", *OPTIONS)
        wait_until(service.version, START_SECS, "version 5", done="5".__eq__, poll_secs=0.5)
        np.testing.assert_allclose(await_both(service, X).reshape(3, 3), 7 * FIRST, rtol=1e-6)
    assert "persistentvolumeclaim/local-serve" in left(space)
    wait_until(
        lambda: [name for name in left(space) if "models" in name], COMMAND_SECS, "the pod that wrote them to go",
        done=operator.not_, poll_secs=0.5,
    )  # fmt: skip
    space.psfleet("down", service.name, secs=START_SECS)
    assert left(space) == []


def test_clients_verify_the_certificate_of_the_front(space: Space) -> None:
    """The kubelet, which asks whether the front is ready, does not."""
    end = datetime.now(UTC) + timedelta(days=1)
    authority = new_authority("authority", end)
    certificate, key = new_certificate("front", ["localhost"], authority, end)
    (space.folder / "front.pem").write_bytes(public_pem(certificate))
    (space.folder / "front.key").write_bytes(private_pem(key))
    service = KindService(space, (space.folder / runs(space.folder)[0],), "local")
    files = ("--tls-cert", str(space.folder / "front.pem"), "--tls-key", str(space.folder / "front.key"))
    assert "is ready: https://local-serve:8000/v2/models/local" in service.serve("--name", "local", *files, *OPTIONS)
    context = ssl.create_default_context(cadata=public_pem(authority[0]).decode())

    def described() -> str:
        asked = Request(
            f"https://localhost:{service.rest_port}/v2/models/local", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        try:
            with urlopen(asked, context=context, timeout=COMMAND_SECS) as answer:
                return str(json.load(answer)["name"])
        except ConnectionError as error:
            return str(error)
        except URLError as error:
            return str(error.reason)

    with service.forwarded():
        wait_until(described, START_SECS, "an answer of the front", done="local".__eq__, poll_secs=0.5)
    assert "PRIVATE KEY" not in space.kubectl("get", "deployments,pods,configmaps", "-o", "yaml")


def test_the_best_trials_of_a_study_are_an_ensemble(space: Space) -> None:
    choices = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}
    (space.folder / "study").mkdir()
    study = SweptStudy.make(space.folder / "study", choices, {"predicts": True})
    file, out = study.folder / "study.yaml", space.folder / "studies" / "swept"
    commanded("sweep", str(file), "--out", str(out))
    weights = weights_in(out)
    serve_both(space, file, weights)
    assert left(space) == []


def test_a_study_is_served_from_its_claim_if_its_results_are_not_here(space: Space) -> None:
    choices = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}
    (space.folder / "study").mkdir()
    study = SweptStudy.make(space.folder / "study", choices, {"predicts": True, "folder": "/tmp"}, fleet={"workers": 2})
    file, out = study.folder / "study.yaml", space.folder / "elsewhere"
    space.psfleet("sweep", str(file), "--out", str(out), secs=2 * START_SECS)
    weights = weights_in(out)
    shutil.rmtree(out)
    serve_both(space, file, weights)
    assert left(space) == ["persistentvolumeclaim/swept"]


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
