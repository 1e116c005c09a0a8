"""Examples: scripts print what their pages show, the GAN's report has pictures, formats and parts change no result."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.pictures import pictures

EXAMPLES = Path(__file__).parents[2] / "examples"
SECS = 150


@pytest.mark.extended
@pytest.mark.parametrize("script", ["remote/drive.py", "lbfgs/minimize.py"])
def test_a_script_that_drives_a_run_prints_what_its_page_shows(script: str, tmp_path: Path) -> None:
    """Numbers apart: the one that the page of lbfgs is about is compared by the script itself."""
    page = (EXAMPLES / script).with_name("README.md").read_text()
    _, expected = re.findall(r"```\n(.*?)```", page, re.DOTALL)
    run = subprocess.run(
        [sys.executable, EXAMPLES / script], cwd=tmp_path, capture_output=True, text=True, timeout=SECS, check=False
    )
    assert run.returncode == 0, run.stderr
    assert shape(run.stdout) == shape(expected)
    assert not re.search(r"accuracy 0\.[0-8]", run.stdout.splitlines()[-2]), run.stdout


def shape(text: str) -> str:
    """A text without numbers and folders, and with each run of spaces as one."""
    return re.sub(r"[\d.]+", "0", re.sub(r"/\S+/runs/", "/runs/", re.sub(r" +", " ", text))).strip()


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_the_report_of_the_gan_shows_what_its_generator_makes(tmp_path: Path) -> None:
    overrides = ["train.steps=40", "summaries.every_steps=20"]
    report = psfleet.train(EXAMPLES / "gan" / "job.yaml", out=tmp_path, overrides=overrides)
    assert report.status == "done", report.error
    assert report.eval.keys() == {"discriminator_loss", "generator_loss"}
    assert [picture.step for picture in pictures(tmp_path)["generated"]] == [20, 40]
    assert (tmp_path / "report.html").read_text().count("<img ") == 2


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
@pytest.mark.parametrize("format", ["csv", "records", "tfrecord", "text"])
def test_the_same_program_trains_on_files_of_each_format(format: str, tmp_path: Path) -> None:
    """As its page shows, with the folder of the example copied."""
    example = write_formats(tmp_path, format)
    report = psfleet.train(example / "job.yaml", out=tmp_path / "run", overrides=[f"options.format={format}"])
    assert report.status == "done", report.error
    assert report.eval["accuracy"] > 0.9


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_a_bad_line_ends_the_run_with_its_file_and_number(tmp_path: Path) -> None:
    example = write_formats(tmp_path, "csv")
    path = example / "data" / "csv" / "train-1.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:7], "1,2,x\n", *lines[8:]]))
    report = psfleet.train(example / "job.yaml", out=tmp_path / "run")
    assert (report.status, report.exit_code) == ("failed", 70)
    assert report.error is not None
    assert f"[{path}:8: expected 65 whole numbers, found 1,2,x]" in report.error
    assert "\n" not in report.error


def write_formats(folder: Path, format: str) -> Path:
    """A copy of the examples' folder, with the files of a format; returns the example."""
    shutil.copytree(EXAMPLES / "formats", folder / "examples" / "formats", ignore=shutil.ignore_patterns("data"))
    shutil.copytree(EXAMPLES / "lenet" / "data", folder / "examples" / "lenet" / "data")
    script = folder / "examples" / "formats" / "write.py"
    subprocess.run([sys.executable, script, format], check=True, timeout=SECS)
    return script.parent


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_the_stacked_rnn_gives_the_same_model_on_two_parts_and_on_one_worker(tmp_path: Path) -> None:
    job, few = EXAMPLES / "stacked_rnn" / "job.yaml", ["train.steps=10", "train.batch_size=32", "options.units=32"]
    found = []
    for parts in (2, 1):
        out = tmp_path / str(parts)
        overrides = [*few, f"fleet.workers={parts}", f"fleet.parts={parts}"]
        assert psfleet.train(job, out=out, overrides=overrides).status == "done"
        newest = store.newest(out / "checkpoints")
        assert newest is not None
        found.append(read_tensors(newest))
    for name, value in found[1].items():
        np.testing.assert_allclose(found[0][name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_movielens_is_better_than_the_mean(tmp_path: Path) -> None:
    """On ratings that are made: a fresh clone has no others."""
    overrides = ["train.steps=150", "train.batch_size=200"]
    report = psfleet.train(EXAMPLES / "movielens" / "job.yaml", out=tmp_path, overrides=overrides)
    assert report.status == "done", report.error
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    (mean,) = re.findall(r"ratings were made; their mean, [\d.]+, has a test RMSE of ([\d.]+)", log)
    assert report.eval["rmse"] < 0.95 * float(mean)
    assert report.eval["precision"] > 0.7
