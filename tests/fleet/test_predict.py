"""`psfleet predict` on worker processes: each example once and in order, through workers that die or freeze."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support import commands
from support.exported_run import BIAS, KERNEL, trained
from support.programs import predicted_data
from support.swept_study import END_SECS, SweptStudy

from psfleet.polling import wait_until
from psfleet.processes.command import Process

EXPECTED = predicted_data.features() @ KERNEL + BIAS


def _run_folder(folder: Path) -> Path:
    shutil.copy(predicted_data.__file__, folder)
    return trained(folder, deadlines={"step_secs": 3})


def _started(folder: Path, *arguments: str) -> Process:
    return commands.started(
        "psfleet", "predict", ".", "--out", "out.npz", "--workers", "2", *arguments,
        folder=folder, out=folder / "screen", err=folder / "screen",
    )  # fmt: skip


def _held(folder: Path) -> tuple[Process, list[int]]:
    """The command while its workers wait for data, and the process ids of these."""
    (folder / "readers").touch()
    (folder / "hold").touch()
    driver = _started(folder, "--data", "predicted_data:held")
    wait_until(lambda: len(_readers(folder)) == 2, END_SECS, "both workers")
    return driver, _readers(folder)


def _readers(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "readers").read_text().split()]


def _left(folder: Path) -> Sequence[str]:
    """Names of files that a command would leave if it cleaned nothing up."""
    return [path.name for path in folder.iterdir() if "out.npz" in path.name]


def test_each_example_is_predicted_once_in_order_although_a_worker_is_killed(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path)
    driver, readers = _held(folder)
    os.kill(readers[0], signal.SIGKILL)
    wait_until(lambda: len(_readers(folder)) == 3, END_SECS, "its successor")
    assert _left(folder)[0] != "out.npz"
    (folder / "hold").unlink()
    screen = folder / "screen"
    assert driver.wait() == 0, screen.read_text()
    assert "died (killed by SIGKILL) and is started again; its share is predicted again" in screen.read_text()
    assert "predictions float32 [10, 3] of step 0, by 2 workers" in screen.read_text()
    with np.load(folder / "out.npz") as found:
        np.testing.assert_allclose(found["predictions"], EXPECTED)
    assert _left(folder) == ["out.npz"]


@pytest.mark.extended
def test_a_frozen_worker_is_replaced(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path)
    driver, readers = _held(folder)
    os.kill(readers[1], signal.SIGSTOP)
    (folder / "hold").unlink()
    assert driver.wait() == 0, (folder / "screen").read_text()
    assert "died (no sign of life for 3 s)" in (folder / "screen").read_text()
    with np.load(folder / "out.npz") as found:
        np.testing.assert_allclose(found["predictions"], EXPECTED)


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    folder = _run_folder(tmp_path)
    driver, readers = _held(folder)
    driver.send_signal(number)
    assert driver.wait() == 128 + number, (folder / "screen").read_text()
    assert "interrupted: nothing was written" in (folder / "screen").read_text()
    assert not [pid for pid in readers if Path("/proc", str(pid)).exists()]
    assert not _left(folder)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        ("differing", 70, "the workers have read different data"),
        ("narrow", 70, "expected axis -1 of input shape to have value 2"),
        ("failing", 70, "reading the data set raised ValueError: no more rows"),
        ("missing", 70, "nothing of that name at 'missing'"),
    ],
)
def test_a_data_set_that_fails_ends_the_command_in_one_line(tmp_path: Path, data: str, code: int, message: str) -> None:
    folder = _run_folder(tmp_path)
    (folder / "out.npz").write_text("of an earlier command")
    assert _started(folder, "--data", f"predicted_data:{data}").wait() == code
    last = (folder / "screen").read_text().splitlines()[-1]
    assert last.startswith("psfleet: program ")
    assert message in last
    assert (folder / "out.npz").read_text() == "of an earlier command"
    assert _left(folder) == ["out.npz"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("code", "message"), [(70, "with exit code 70, expected it to return"), (75, "died 4 times, last: exit code 75")]
)
def test_a_program_that_ends_its_worker_ends_the_command(tmp_path: Path, code: int, message: str) -> None:
    folder = _run_folder(tmp_path)
    (folder / "end").write_text(str(code))
    assert _started(folder, "--data", "predicted_data:held").wait() == code
    assert message in (folder / "screen").read_text().splitlines()[-1]
    assert not _left(folder)


@pytest.mark.extended
def test_the_best_trial_of_a_study_predicts(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, {"optimizer.learning_rate": {"choice": [0.01, 0.2]}}, {"predicts": True}, keep=1)
    assert study.run().returncode == 0
    (tmp_path / "few_numbers.py").write_text("import tensorflow as tf\ndef few(): return tf.data.Dataset.range(3)\n")
    done = commands.psfleet(
        tmp_path, "predict", "studies/swept", "--data", "few_numbers:few", "--out", "out.npz", timeout_secs=END_SECS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    best = min(study.rows(), key=lambda row: float(row["loss"]))
    assert f"of trial {best['trial']}, by" in done.stdout
    with np.load(tmp_path / "out.npz") as found:
        first, second, third = found["predictions"].tolist()
    assert (first, third) == (0.0, 2 * second)
