"""`psfleet train` as users start it, without a fork server: each process imports TensorFlow itself.

test_wheel.py starts it with the launcher's own fork server, as it does by default.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.tiny_job import END_SECS, JOB, PRELUDE

from psfleet.report.schema import Report
from psfleet.service import settings


def test_a_fleet_trains_whose_processes_are_started_alone(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "program.py").write_text(PRELUDE)
    done = subprocess.run(
        [sys.executable, "-m", "psfleet", "train", "job.yaml", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, settings.FORK_SERVER: settings.NO_FORK_SERVER},
        capture_output=True,
        text=True,
        timeout=END_SECS,
        check=False,
    )
    assert done.returncode == 0, done
    assert Report.read(tmp_path / "out").status == "done"
