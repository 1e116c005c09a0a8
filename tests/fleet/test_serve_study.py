"""The best trials of a study as an ensemble: trained by `psfleet sweep`, and served."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import yaml
from support import commands
from support.exported_run import PROGRAM, X
from support.served import query, serving

END_SECS = 90.0
EXAMPLES = Path(__file__).parents[2] / "examples"


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


@pytest.mark.extended
def test_the_script_of_the_example_prints_the_accuracy_of_trials_and_ensemble(tmp_path: Path) -> None:
    content = yaml.safe_load((EXAMPLES / "study" / "study.yaml").read_text())
    content["job"] = str(EXAMPLES / "lenet" / "job.yaml")
    content["space"]["train.steps"] = {"choice": [20]}
    content["search"]["trials"] = 2
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    done = commands.psfleet(tmp_path, "sweep", "study.yaml", timeout_secs=END_SECS)
    assert done.returncode == 0, done.stdout + done.stderr
    image = query(np.zeros([1, 28, 28, 1]))
    with serving(tmp_path, ["studies/digits"], "--top", "2", num_members=2, probe=image, model="digits") as service:
        script = (EXAMPLES / "study" / "accuracy.py").read_text()
        assert "http://127.0.0.1:8000" in script
        (tmp_path / "study").mkdir()
        (tmp_path / "lenet").symlink_to(EXAMPLES / "lenet")
        (tmp_path / "study" / "accuracy.py").write_text(script.replace("8000", str(service.rest_port)))
        command = [sys.executable, "study/accuracy.py", "studies/digits"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=END_SECS, check=False)
    assert said.returncode == 0, said.stderr
    rows = (tmp_path / "studies/digits/trials.csv").read_text().splitlines()[1:]
    trials = {row.split(",")[0]: f"{float(row.split(',')[2]):.2%}" for row in rows}
    *lines, ensemble = said.stdout.splitlines()
    assert set(lines) == {f"trial {trial}: {accuracy}" for trial, accuracy in trials.items()}
    assert re.fullmatch(r"ensemble \(2 of 2\): \d+\.\d\d%", ensemble)
