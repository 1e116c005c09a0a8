"""No manifest is rendered for replicas of several parts, whose workers open sessions with each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.program_samples import sample_job

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.manifests.compose import render as compose
from psfleet.manifests.kubernetes import render as kubernetes


def job(parts: int) -> Job:
    return parse_job({**sample_job().model_dump(), "fleet": {"workers": 2, "parts": parts}})


@pytest.mark.parametrize("render", [compose.render, kubernetes.render], ids=["compose", "kubernetes"])
def test_several_parts_are_refused_with_the_reason(render: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    assert render(job(1), tmp_path / "job.yaml")
    with pytest.raises(BadJobError, match=r"fleet\.parts is 2, expected 1 in containers: workers have no routes"):
        render(job(2), tmp_path / "job.yaml")
