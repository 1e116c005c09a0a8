"""`psfleet weights --out` beside a run that trains in the folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.checkpoint_samples import save
from support.command_line import Psfleet

from psfleet.checkpoint.in_progress import WRITING_SECS
from psfleet.checkpoint.manifest import MANIFEST
from psfleet.job.job import load_job
from psfleet.run_folder import claimed

RUN = Path("runs/tiny")


@pytest.mark.parametrize("source", [str(RUN), f"{RUN}/checkpoints"])
def test_a_checkpoint_that_the_run_has_not_committed_is_no_reason_for_a_warning(psfleet: Psfleet, source: str) -> None:
    save(RUN / "checkpoints", 10)
    unfinished = save(RUN / "checkpoints", 20).folder
    assert isinstance(unfinished, Path)
    (unfinished / MANIFEST).unlink()
    for path in (unfinished, *unfinished.iterdir()):
        os.utime(path, (time.time() - WRITING_SECS - 10,) * 2)
    with claimed(RUN, load_job(Path("job.yaml")), fresh=False):
        said = psfleet("weights", source, "--out", "w.safetensors")
        assert (said.code, said.err) == (0, ""), "the run may be writing it slowly"
    said = psfleet("weights", source, "--out", "w.safetensors")
    assert said.code == 0
    assert "00000020-g1 has no manifest.json: it was never committed" in said.err, "the run has ended"
