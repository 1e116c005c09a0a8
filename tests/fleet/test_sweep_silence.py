"""Studies whose workers wait for ever: one that is frozen, and one whose step does not end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.swept_study import END_SECS, SweptStudy

from psfleet.polling import wait_until

SPACE = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}


def test_a_frozen_worker_is_replaced_and_its_trial_repeated(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, SPACE, deadlines={"step_secs": 3})
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    driver = study.start()
    wait_until(lambda: len(study.reads()) == 1, END_SECS, "the first trial")
    frozen = int(study.reads()[0])
    os.kill(frozen, signal.SIGSTOP)
    # Thawed, it would finish its trial.
    (tmp_path / "hold").unlink()
    assert driver.wait() == 0, study.screen
    assert "worker 0 died (no sign of life for 3 s) and is started again; trial 0 is lost" in study.screen
    assert not Path("/proc", str(frozen)).exists()
    assert len(set(study.reads())) == 2
    assert [row["state"] for row in study.rows()] == ["complete"] * 2
    assert "0" not in [row["trial"] for row in study.rows()], "repeated under another number"


@pytest.mark.extended
def test_a_step_that_does_not_end_costs_its_trial_a_worker_and_no_more(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, SPACE, deadlines={"stall_secs": 2})
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    driver = study.start()
    wait_until(lambda: len(study.reads()) == 2, END_SECS, "the repetition")
    assert "worker 0 died (gave up after 2 s waiting for step 1 (exit code 75))" in study.screen
    (tmp_path / "hold").unlink()
    assert driver.wait() == 0, study.screen
    assert [row["state"] for row in study.rows()] == ["complete"] * 2
