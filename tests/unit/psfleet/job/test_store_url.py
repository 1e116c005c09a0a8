"""Which URLs a job file may name as the store of its checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job import store_url
from psfleet.job.job import Job, parse_job
from psfleet.job.store_url import require_package

JOB: dict[str, Any] = {
    "name": "stored",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}


def job(**checkpoint: Any) -> Job:
    return parse_job({**JOB, "checkpoint": checkpoint})


@pytest.mark.parametrize("url", ["s3://bucket", "s3://my.bucket-1/team/run_7", "gs://bucket/a", "az://container/a=b"])
def test_a_bucket_and_a_prefix_are_a_store(url: str) -> None:
    assert job(store=url).checkpoint.store == url
    assert job(store=f"{url}/").checkpoint.store == url


@pytest.mark.parametrize(
    "url",
    [
        "bucket/prefix",
        "file:///tmp/run",
        "ftp://host/run",
        "s3://",
        "s3:///run",
        "s3://key:secret@bucket/run",
        "s3://bucket/run?versionId=1",
        "s3://bucket/../other",
        "s3://bucket//run",
        "s3://bucket/a b",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(BadJobError, match=r"checkpoint.store.*s3://, gs://, az://"):
        job(store=url)


def test_a_store_needs_no_shared_folder() -> None:
    with pytest.raises(BadJobError, match=r"checkpoint: shared is true, expected false with store"):
        job(store="s3://bucket/run", shared=True)


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(store_url.PACKAGES, "az", "no_such_package")
    with pytest.raises(BadJobError, match=r"az://c/run: package no_such_package.*psfleet\[az\]"):
        require_package("az://c/run")
    require_package("s3://bucket/run")
    require_package(None)
