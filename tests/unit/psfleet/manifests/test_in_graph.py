"""In-graph replication is rendered where the chief reaches the other workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.manifests.compose import render as compose
from psfleet.manifests.kubernetes import render as kubernetes


def job(replication: str) -> Job:
    fields: dict[str, Any] = {"name": "small", "program": "program:build", "fleet": {"workers": 2}}
    fields |= {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "train": {"steps": 10, "batch_size": 2}}
    return parse_job({**fields, "update": {"replication": replication}})


def test_on_compose_chief_and_workers_have_one_network(tmp_path: Path) -> None:
    services = compose.render(job("in_graph"), tmp_path / "job.yaml")["services"]
    assert services["chief"]["networks"] == services["worker"]["networks"]


def test_kubernetes_refuses_it_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    assert kubernetes.render(job("between_graph"), tmp_path / "job.yaml")
    with pytest.raises(BadJobError, match=r"update\.replication is in_graph, expected between_graph on Kubernetes"):
        kubernetes.render(job("in_graph"), tmp_path / "job.yaml")
