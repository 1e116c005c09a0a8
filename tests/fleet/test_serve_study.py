"""The best trials of a study as an ensemble: trained by `psfleet sweep`, and served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import yaml
from support import commands
from support.exported_run import PROGRAM, X
from support.served import serving

END_SECS = 90.0


@pytest.mark.extended
@pytest.mark.parametrize("given", ["studies/net", "study.yaml"])
def test_the_best_trials_of_a_study_are_served(tmp_path: Path, given: str) -> None:
    (tmp_path / "versioned_program.py").write_text(PROGRAM)
    job = {
        "name": "other",
        "program": "versioned_program:evaluated_program",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 4, "batch_size": 4},
    }
    study = {
        "name": "net",
        "job": "job.yaml",
        "space": {"optimizer.learning_rate": {"choice": [0.001, 0.05, 0.1]}},
        "objective": {"metric": "loss", "direction": "minimize"},
        "search": {"kind": "grid"},
        "keep": 2,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    done = commands.psfleet(tmp_path, "sweep", "study.yaml", timeout_secs=END_SECS)
    assert done.returncode == 0, done.stdout + done.stderr
    weights = [safetensors.numpy.load_file(file) for file in (tmp_path / "studies/net/weights").iterdir()]
    expected = np.mean([X @ each["net/dense/kernel"] + each["net/dense/bias"] for each in weights], axis=0)
    with serving(tmp_path, [given], "--top", "2", num_members=2) as service, service.client() as client:
        found, answer = client.infer(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (answer["model_version"], answer["parameters"]["members"]) == ("4", "2 of 2")
    refused = commands.psfleet(tmp_path, "serve", given, "--top", "3", timeout_secs=END_SECS)
    assert (refused.returncode, "has weights of the best 2 trials" in refused.stderr) == (64, True)
