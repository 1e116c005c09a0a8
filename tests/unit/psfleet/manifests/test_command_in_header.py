"""The command line in the header of rendered files is a comment, whatever its words are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.job.job import Job, load_job
from psfleet.manifests.compose.render import file_text
from psfleet.manifests.kubernetes.render import manifests_text

JOB = Path(__file__).parents[4] / "examples" / "linear" / "job.yaml"


def compose(job: Job, command: str) -> str:
    return file_text(job, JOB, None, command)


def kubernetes(job: Job, command: str) -> str:
    return manifests_text(job, JOB, command)


@functools.cache
def plain(render: Callable[[Job, str], str]) -> list[Any]:
    """The content under an ordinary command line."""
    return list(yaml.safe_load_all(render(load_job(JOB), "psfleet render")))


@pytest.mark.parametrize("render", [compose, kubernetes])
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028"], ids=ascii)
def test_a_word_of_several_lines_adds_nothing_to_the_content(render: Callable[[Job, str], str], end: str) -> None:
    job = load_job(JOB)
    text = render(job, f"psfleet render --set 'name=linear{end}kind: Injected{end}---{end}kind: Injected'")
    assert list(yaml.safe_load_all(text)) == plain(render)
