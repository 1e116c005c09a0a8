"""`psfleet train` without a fork server, as on macOS: the process that it starts imports TensorFlow itself.

test_wheel.py starts it with the launcher's own fork server, as it does by default on Linux. The ps here is forked; one
that is started by itself is in the tests of containers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.service_process import Service
from support.tiny_job import END_SECS, JOB, PRELUDE

from psfleet.report.schema import Report
from psfleet.service import settings


@pytest.mark.extended
def test_a_worker_that_is_started_alone_trains(shared: Service, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "program.py").write_text(PRELUDE)
    on = json.dumps([shared.address.data])
    done = subprocess.run(
        [sys.executable, "-m", "psfleet", "train", "job.yaml", "--out", "out", "--set", f"fleet.ps_addresses={on}"],
        cwd=tmp_path,
        env={**os.environ, settings.FORK_SERVER: settings.NO_FORK_SERVER},
        capture_output=True,
        text=True,
        timeout=END_SECS,
        check=False,
    )
    assert done.returncode == 0, done
    assert Report.read(tmp_path / "out").status == "done"
