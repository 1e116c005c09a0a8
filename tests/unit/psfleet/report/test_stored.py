"""Reports of runs whose checkpoints are in a store: the launcher needs no access to it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.checkpoint_samples import save
from support.report_samples import DONE
from support.s3_server import BROKEN, S3Server

from psfleet.checkpoint.location import record
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import UsageError
from psfleet.job.job import parse_job
from psfleet.report import html
from psfleet.report.evidence import validated, with_own_checkpoints
from psfleet.report.schema import CheckpointInfo, Report

JOB = {
    "name": "lenet",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 1900, "batch_size": 2},
}


def stored(url: str, step: int = 1900) -> Report:
    return DONE.model_copy(update={"checkpoint": CheckpointInfo(path=url, step=step)})


def test_a_checkpoint_that_was_copied_is_named_by_its_copy_and_one_in_a_store_by_its_url(tmp_path: Path) -> None:
    copied, left = stored("/out/checkpoints/00001900-g1"), stored("s3://bucket/run/checkpoints/00001900-g1")
    assert with_own_checkpoints(copied, tmp_path).checkpoint == CheckpointInfo(
        path=str(tmp_path / "checkpoints" / "00001900-g1"), step=1900
    )
    assert with_own_checkpoints(left, tmp_path) == left


def test_a_success_whose_checkpoint_is_in_a_store_stands_on_the_word_of_the_chief(tmp_path: Path) -> None:
    """It has verified it; the launcher's machine may have neither the credentials nor a way to the store."""
    report = stored("s3://nobody-knows/run/checkpoints/00001900-g1")
    assert validated(report, tmp_path) == report


def test_a_published_report_names_the_newest_checkpoint_in_the_store(
    s3: S3Server, bucket: StoreFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path, parse_job({**JOB, "checkpoint": {"store": f"{bucket}/run"}}))
    newest = save(bucket / "run" / "checkpoints", 1900)
    report = stored(f"{bucket}/run/checkpoints/00001800-g1", 1800)
    assert html.publish(report, tmp_path).checkpoint == CheckpointInfo(path=str(newest.folder), step=1900)
    s3.fault = lambda method, path: BROKEN
    with caplog.at_level(logging.WARNING):
        assert html.publish(report, tmp_path).checkpoint == report.checkpoint
    assert "not known" in caplog.text


def test_a_store_without_a_report_is_a_wrong_argument(bucket: StoreFolder) -> None:
    with pytest.raises(UsageError, match=r"report s3://.*/run/report\.json: No such file"):
        Report.read(f"{bucket}/run")
