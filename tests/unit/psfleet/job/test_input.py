"""The job file's `input` section."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job.differences import changes
from psfleet.job.job import Job, parse_job


def job(content: dict[str, Any]) -> Job:
    fields: dict[str, Any] = {"name": "sample", "program": "program:build", "train": {"steps": 60, "batch_size": 1}}
    return parse_job({**fields, "optimizer": {"name": "sgd", "learning_rate": 0.1}, "input": content})


def test_buckets_are_read_back_as_they_were_written() -> None:
    made = job({"pad": True, "bucket_boundaries": [8, 16, 100]})
    assert made.input.bucket_boundaries == [8, 16, 100]
    assert Job.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"bucket_boundaries": [8]}, r"bucket_boundaries is \[8\], expected null without pad: true"),
        ({"pad": True, "bucket_boundaries": [8, 8]}, r"\[8, 8\], expected numbers that increase"),
        ({"pad": True, "bucket_boundaries": []}, "input.bucket_boundaries is"),
        ({"pad": True, "bucket_boundaries": [0, 4]}, "input.bucket_boundaries.0 is 0"),
        ({"sharding": "dynamic"}, "sharding is dynamic, expected static without from: loaders"),
        (
            {"from": "loaders", "sharding": "dynamic", "pad": True, "bucket_boundaries": [8]},
            r"bucket_boundaries is \[8\], expected null with sharding: dynamic",
        ),
        ({"from": "memory"}, "input.from is 'memory': Input should be 'worker', 'preload' or 'loaders'"),
        ({"source": "preload"}, "input.source: unknown key"),
        ({"form": "preload"}, "input.form: unknown key; did you mean from"),
        ({"padding": True}, "input.padding: unknown key; did you mean pad"),
    ],
)
def test_what_cannot_be_meant_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(BadJobError, match=message):
        job(content)


def test_from_is_a_key_of_the_file_and_of_what_is_written() -> None:
    made = job({"from": "preload"})
    assert made.input.source == "preload"
    assert made.model_dump(mode="json")["input"]["from"] == "preload"
    assert Job.model_validate_json(made.model_dump_json()) == made
    assert changes(job({}).model_dump(mode="json"), made) == ["input.from worker -> preload"]
