"""Studies on worker processes: results, failed trials, and processes that are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from support import commands
from support.swept_study import END_SECS, SweptStudy

from psfleet.polling import wait_until

LEARNING_RATE = "optimizer.learning_rate"


def test_trials_equal_training_with_one_worker_and_one_that_diverges_fails_alone(tmp_path: Path) -> None:
    study = SweptStudy.make(
        tmp_path, {LEARNING_RATE: {"choice": [0.01, 1e30, 0.2]}, "train.batch_size": {"choice": [4, 8]}}, keep=1
    )
    done = study.run()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = study.rows()
    assert [row["trial"] for row in rows] == list("012345")
    by_state = {state: [row for row in rows if row["state"] == state] for state in ("complete", "fail")}
    assert len(by_state["complete"]) == 4
    assert {row[LEARNING_RATE] for row in by_state["fail"]} == {"1e+30"}
    assert all("expected" in row["error"] for row in by_state["fail"])
    assert len(study.reads()) == 1, "one worker reads the data once"
    best = min(by_state["complete"], key=lambda row: float(row["loss"]))
    trained = commands.psfleet(tmp_path, "train", "studies/swept/best.yaml", timeout_secs=END_SECS)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    commands.psfleet(tmp_path, "weights", "runs/swept-best", "--out", "w.safetensors", timeout_secs=END_SECS)
    expected = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    (kept,) = (study.out / "weights").iterdir()
    assert kept.name == f"{int(best['trial']):05d}.safetensors"
    found = safetensors.numpy.load_file(kept)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)
    assert f"{float(best['loss']):.4f}"[:5] in trained.stdout
    assert f"Best: trial {best['trial']}, loss" in (study.out / "report.html").read_text()


def test_a_killed_worker_and_a_killed_driver_cost_no_trial(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, {LEARNING_RATE: {"choice": [0.01, 0.02, 0.03]}})
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    driver = study.start()
    wait_until(lambda: len(study.reads()) == 1, END_SECS, "the first trial")
    os.kill(int(study.reads()[0]), signal.SIGKILL)
    wait_until(lambda: len(study.reads()) == 2, END_SECS, "its repetition in another process")
    assert len(set(study.reads())) == 2
    assert "worker 0 died (killed by SIGKILL) and is started again; trial 0 is lost" in study.screen
    (tmp_path / "hold").unlink()
    wait_until(lambda: (study.out / "trials.csv").exists(), END_SECS, "a finished trial")
    (tmp_path / "hold").touch()
    before = study.rows()
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    (tmp_path / "hold").unlink()
    done = study.run()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = study.rows()
    assert rows[: len(before)] == before, "finished trials stay as they were"
    assert [row["state"] for row in rows] == ["complete"] * 3
    assert sorted(row[LEARNING_RATE] for row in rows) == ["0.01", "0.02", "0.03"]
    again = study.run()
    assert (again.returncode, study.rows()) == (0, rows)


@pytest.mark.extended
def test_an_interrupted_study_leaves_no_process_and_continues(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, {LEARNING_RATE: {"choice": [0.01, 0.02]}}, fleet={"workers": 2})
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    driver = study.start()
    wait_until(lambda: len(study.reads()) == 2, END_SECS, "a trial on each worker")
    second = study.run()
    assert (second.returncode, "another psfleet sweep uses" in second.stderr) == (64, True)
    driver.send_signal(signal.SIGINT)
    assert driver.wait() == 130, study.screen
    assert "the same command continues the study" in study.screen
    assert not [pid for pid in study.reads() if Path("/proc", pid).exists()]
    (tmp_path / "hold").unlink()
    done = study.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["state"] for row in study.rows()] == ["complete", "complete"]


@pytest.mark.extended
def test_a_study_whose_program_is_mended_repeats_the_trials_that_failed_by_it(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, {LEARNING_RATE: {"choice": [0.01, 0.02]}}, fleet={"workers": 2})
    program = tmp_path / "swept_program.py"
    text = program.read_text()
    program.write_text("raise ValueError('not yet')\n")
    done = study.run()
    assert done.returncode == 70, done.stdout + done.stderr
    assert "raise ValueError('not yet')\nValueError: not yet\npsfleet: " in done.stderr
    program.write_text(text)
    done = study.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["state"], row["error"]) for row in study.rows()] == [("complete", "")] * 2


def test_trials_that_fall_behind_are_pruned_and_do_not_run_again(tmp_path: Path) -> None:
    rates = [0.05, 1e-4, 1e-5, 1e-6]
    study = SweptStudy.make(
        tmp_path,
        {LEARNING_RATE: {"choice": rates}, "train.steps": {"choice": [12]}},
        prune={"kind": "asha", "every_steps": 2},
    )
    done = study.run()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = study.rows()
    # Trials follow one another on one worker: one is pruned if an earlier one was better at the first rung.
    best, expected = 0.0, []
    for row in rows:
        expected.append("complete" if float(row[LEARNING_RATE]) > best else "pruned")
        best = max(best, float(row[LEARNING_RATE]))
    assert [row["state"] for row in rows] == expected
    assert "pruned" in expected
    assert "pruned at step 2, loss" in done.stdout
    kept = {int(path.stem) for path in (study.out / "weights").iterdir()}
    assert kept == {number for number, state in enumerate(expected) if state == "complete"}
    assert study.run().returncode == 0
    assert study.rows() == rows


@pytest.mark.extended
def test_a_program_that_ends_its_process_fails_its_trial_and_not_the_study(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, {"options.end": {"choice": ["", "os._exit", "sys.exit"]}})
    done = study.run()
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["options.end"]: (row["state"], row["error"]) for row in study.rows()}
    assert found[""] == ("complete", "")
    assert found["os._exit"] == ("fail", "the program ended worker 0 with exit code 70")
    assert found["sys.exit"][0] == "fail", found
    assert "SystemExit: 70" in found["sys.exit"][1]


@pytest.mark.extended
def test_as_many_trials_as_there_are_workers_run_at_the_same_time(tmp_path: Path) -> None:
    study = SweptStudy.make(
        tmp_path, {LEARNING_RATE: {"float": [0.01, 0.1]}}, search={"kind": "random", "trials": 8}, fleet={"workers": 8}
    )
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    driver = study.start()
    wait_until(lambda: len(set(study.reads())) == 8, END_SECS, "a trial on each worker, of which none ends")
    (tmp_path / "hold").unlink()
    assert driver.wait() == 0, study.screen
    assert [row["state"] for row in study.rows()] == ["complete"] * 8
    assert len(study.reads()) == 8


@pytest.mark.parametrize(
    ("study", "options", "code", "message"),
    [
        ({"objective": {"metric": "accuracy", "direction": "maximize"}}, {}, 78, "objective.metric is 'accuracy'"),
        ({}, {"unknown": 1}, 70, "options"),
    ],
)
def test_a_program_that_does_not_fit_ends_the_study(
    tmp_path: Path, study: dict[str, object], options: dict[str, object], code: int, message: str
) -> None:
    swept = SweptStudy.make(tmp_path, {LEARNING_RATE: {"choice": [0.01, 0.02]}}, options, **study)
    done = swept.run()
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
