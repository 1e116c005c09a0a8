"""The program that a checkpoint records, and those that record none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.tiny_job import job

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.errors import BadJobError, UsageError


def checkpoint(folder: Path, extra: dict[str, Any]) -> Checkpoint:
    found = save(folder, 10)
    found.extra.update(extra)
    return found


def test_the_job_and_its_folder_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    recorded = {"job": job().model_dump(mode="json"), "program_folder": "/program"}
    assert recorded_program(checkpoint(tmp_path, recorded)) == (job(), Path("/program"))


@pytest.mark.parametrize("extra", [{}, {"program_folder": "/program"}, {"job": job().model_dump(mode="json")}])
def test_a_checkpoint_without_job_or_folder_is_refused(tmp_path: Path, extra: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"checkpoint .* names no program, expected one of psfleet train$"):
        recorded_program(checkpoint(tmp_path, extra))
    with pytest.raises(UsageError, match=r"names no program, expected another$"):
        recorded_program(checkpoint(tmp_path, extra), "another")


def test_a_job_of_another_version_is_named_with_its_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(BadJobError, match=r"job of checkpoint .*"):
        recorded_program(checkpoint(tmp_path, {"job": {"name": "net"}, "program_folder": "/program"}))
