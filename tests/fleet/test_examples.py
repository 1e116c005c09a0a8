"""Examples: scripts that drive a run print what their pages show, and the GAN's report has pictures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import psfleet
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
