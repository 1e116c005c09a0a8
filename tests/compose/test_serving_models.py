"""`psfleet serve --on compose`: the models of a study, and of the results that a fleet has left on the engine."""

from __future__ import annotations

import http.client
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from support.compose_fleet import END_SECS, START_SECS
from support.compose_lab import commanded
from support.compose_prediction import compose_run
from support.compose_service import compose_service
from support.compose_study import compose_study
from support.served import query
from support.swept_study import SweptStudy

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

X = np.array([1, 2, 4], np.float32)


def test_the_best_trials_of_a_study_are_an_ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}
    study = SweptStudy.make(tmp_path, space, {"predicts": True})
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    commanded("sweep", "study.yaml")
    weights = [safetensors.numpy.load_file(file)["w"] for file in (study.out / "weights").iterdir()]
    with compose_service(tmp_path / "service") as found:
        found.run("serve", "study.yaml", "--top", "2", "--on", "compose", *found.options)
        found.wait_for(lambda: found.members(X), START_SECS, "both members", done=lambda members: members == "2 of 2")
        with found.client() as client:
            status, answer = client.status_and_content("POST", f"/v2/models/{found.model}/infer", query(X))
        assert status == http.client.OK
        np.testing.assert_allclose(answer["outputs"][0]["data"], np.mean(weights) * X, rtol=1e-5)


def test_a_study_whose_results_were_never_copied_is_served_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compose_study(tmp_path / "study", predicts=True) as study, compose_service(tmp_path / "service") as found:
        assert study.sweep().wait(START_SECS + END_SECS) == 0, study.tails()
        weights = [each["w"] for each in study.weights().values()]
        # There are no results in its folder `studies`.
        monkeypatch.chdir(tmp_path)
        found.run("serve", str(study.folder / "study.yaml"), "--top", "2", "--on", "compose", *found.options)
        found.wait_for(lambda: found.members(X), START_SECS, "both members", done=lambda members: members == "2 of 2")
        with found.client() as client:
            _, answer = client.status_and_content("POST", f"/v2/models/{found.model}/infer", query(X))
        np.testing.assert_allclose(answer["outputs"][0]["data"], np.mean(weights) * X, rtol=1e-5)
        assert not (tmp_path / "studies").exists()


def test_the_results_of_a_fleet_are_served_where_they_are(tmp_path: Path) -> None:
    with compose_run(tmp_path / "run") as trained, compose_service(tmp_path / "service") as found:
        trained.up()
        assert trained.end(START_SECS + END_SECS) == 0, trained.tails()
        found.run("serve", str(trained.job), "--on", "compose", *found.options)
        assert found.version() == "3"
        assert set(trained.left()) == {"volumes"}, "the results of the run stay"
