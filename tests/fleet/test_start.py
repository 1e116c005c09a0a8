"""`psfleet train` as users start it: no process of the run comes from the test session's fork server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_job import END_SECS, JOB, PRELUDE

from psfleet.report.schema import Report
from psfleet.service import settings


@pytest.mark.parametrize("fork_server", ["", settings.NO_FORK_SERVER], ids=["forked", "alone"])
def test_a_fleet_trains_whether_its_processes_are_forked_or_started_alone(tmp_path: Path, fork_server: str) -> None:
    """The program's data come from a pool of processes, which must work below a forked worker, too."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "program.py").write_text(PRELUDE + POOL)
    (tmp_path / "rows.py").write_text(ROWS)
    done = subprocess.run(
        [sys.executable, "-m", "psfleet", "train", "job.yaml", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, settings.FORK_SERVER: fork_server},
        capture_output=True,
        text=True,
        timeout=END_SECS,
        check=False,
    )
    assert done.returncode == 0, done
    assert Report.read(tmp_path / "out").status == "done"


ROWS = """
def doubled(row):
    return row * 2
"""
"""A module of its own: the processes of the pool import it, and not TensorFlow with the program."""
POOL = """
import multiprocessing
import rows

def data(shard, shards):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return tf.data.Dataset.from_tensor_slices(np.stack(pool.map(rows.doubled, list(x)))).shard(shards, shard)
"""
