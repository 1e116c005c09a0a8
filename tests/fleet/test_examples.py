"""The examples whose scripts drive a run, as their pages show them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
