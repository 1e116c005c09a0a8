"""What the job files of all processes of a run have in common, and what may differ."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from psfleet.job.agreement import common_sections, job_digest
from psfleet.job.differences import flattened
from psfleet.job.job import Job, job_from_json, parse_job

JOB = """
name: sample
program: program:build
fleet: {ps: 2, workers: 3}
update: {mode: sync}
optimizer: {name: sgd, learning_rate: 0.1}
train: {steps: 20, batch_size: 4}
"""


def job(field: str = "", value: Any = None) -> Job:
    content = yaml.safe_load(JOB)
    if field:
        section, _, name = field.partition(".")
        content[section] = {**content.get(section, {}), name: value} if name else value
    return parse_job(content)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("program", "program:other"),
        ("fleet.workers", 4),
        ("fleet.max_workers", 9),
        ("update.mode", "async"),
        ("update.wire", "bfloat16"),
        ("optimizer.learning_rate", 0.2),
        ("optimizer", {"name": "adam", "learning_rate": 0.1}),
        ("optimizer", {"name": "program", "learning_rate": 0.1}),
        ("train.steps", 21),
        ("train.seed", 1),
        ("input.pad", True),
    ],
)
def test_what_all_processes_compute_with_is_common(field: str, value: Any) -> None:
    one, other = common_sections(job()), common_sections(job(field, value))
    assert [name for name in one if one[name] != other[name]] == [f"{field.partition('.')[0]} of the job file"]
    assert job_digest(job()) != job_digest(job(field, value))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("options", {"data_dir": "/mnt/a"}),
        ("device.intra_op_threads", 3),
        ("deadlines.stall_secs", 7.0),
        ("fleet.ps_addresses", ["a:1", "b:1"]),
        ("fleet.unix_sockets", False),
        ("checkpoint.keep", 2),
    ],
)
def test_what_belongs_to_a_host_or_to_the_chief_alone_may_differ(field: str, value: Any) -> None:
    assert field.partition(".")[0] in {name.partition(".")[0] for name in flattened(job().model_dump())}
    assert job_digest(job()) == job_digest(job(field, value))


def test_a_job_has_the_digest_that_it_has_after_its_way_to_another_process() -> None:
    assert job_digest(job_from_json(job().model_dump_json())) == job_digest(job())


def test_the_learning_rate_beside_a_programs_optimizer_is_common_if_the_file_has_one() -> None:
    without, one, other = (
        job_digest(job("optimizer", {"name": "program", **fields}))
        for fields in ({}, {"learning_rate": 0.1}, {"learning_rate": 0.2})
    )
    assert len({without, one, other}) == 3
