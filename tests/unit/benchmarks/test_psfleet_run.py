"""What a benchmark reads from psfleet's run folder: the report, and the steps of the history after the warm-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.children import ChildError
from benchmarks.psfleet_run import read_report, settings, window_of
from benchmarks.workload import Workload
from psfleet.job.job import load_job
from psfleet.report.history import History, Point
from psfleet.report.schema import Report

WORKLOAD = Workload(hidden=128, optimizer="adam", steps=100, warmup_steps=30)


def write_history(folder: Path, *points: tuple[float, int]) -> None:
    history = History(folder / History.FILE_NAME)
    for time, step in points:
        history.append(Point(time=time, step=step, generation=1, loss=1.0, step_secs=0.1, examples_per_sec=1.0))


def test_the_window_begins_at_the_first_point_after_the_warmup(tmp_path: Path) -> None:
    write_history(tmp_path, (100.0, 10), (100.5, 30), (101.0, 80), (101.5, 130))
    window = window_of(tmp_path, WORKLOAD)
    assert (window.began, window.ended, window.steps, window.mean_ms) == (100.5, 101.5, 100, 10.0)


def test_a_history_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    write_history(tmp_path, (100.0, 10), (101.0, 130))
    with pytest.raises(ChildError, match="has 1 points after the 30 steps"):
        window_of(tmp_path, WORKLOAD)


@pytest.mark.parametrize(("status", "step"), [("stopped", 130), ("done", 129)])
def test_a_run_that_did_not_reach_its_last_step_is_an_error(tmp_path: Path, status: str, step: int) -> None:
    report = Report(status=status, exit_code=0, name="bench", run="1", mode="sync", target_step=130, final_step=step)
    report.write(tmp_path)
    with pytest.raises(ChildError, match=f"status {status}, final_step {step}, expected done and 130"):
        read_report(tmp_path, 130)


def test_a_workload_is_passed_as_json() -> None:
    workload = Workload(hidden=0, optimizer="sgd", steps=3, shapes=((2, 3), (4,)), wait_ms=5)
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.num_parameters == 10


def test_the_settings_are_those_of_the_workload() -> None:
    job = load_job(Path(__file__).parents[3] / "benchmarks" / "mlp" / "job.yaml", settings(WORKLOAD))
    assert (job.options, job.train.steps, job.train.batch_size) == ({"hidden": 128}, 130, 100)
