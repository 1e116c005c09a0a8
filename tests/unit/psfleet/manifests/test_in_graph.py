"""No manifest is rendered for a job that containers do not run."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize("render", [compose.render, kubernetes.render], ids=["compose", "kubernetes"])
def test_in_graph_replication_is_refused_with_the_reason(render: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    assert render(job("between_graph"), tmp_path / "job.yaml")
    with pytest.raises(BadJobError, match=r"update\.replication is in_graph, expected between_graph in containers"):
        render(job("in_graph"), tmp_path / "job.yaml")
