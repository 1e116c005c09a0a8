"""Names of jobs and fleets that objects in a cluster can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.errors import BadJobError
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import parse_job
from psfleet.manifests.kubernetes.render import render
from psfleet.manifests.kubernetes.standing import render_fleet
from psfleet.platforms.kubernetes.fleet_record import new_access

REFUSED = "name is '2026-digits', expected one that begins with a letter: on Kubernetes it names a Service"


def test_a_job_whose_name_no_service_can_have_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    content = {"program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    job = parse_job({**content, "name": "2026-digits", "train": {"steps": 10, "batch_size": 4}})
    with pytest.raises(BadJobError, match=REFUSED):
        render(job, tmp_path / "job.yaml")


def test_a_standing_fleet_of_such_a_name_is_refused_too() -> None:
    file = FleetFile.model_validate({"name": "2026-digits"})
    with pytest.raises(BadJobError, match=REFUSED):
        render_fleet(file, new_access(file))
