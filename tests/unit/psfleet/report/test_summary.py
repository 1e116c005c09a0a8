"""What the console shows of a report."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.report_samples import DONE, TWO_ATTEMPTS

from psfleet.report.measurements import DataReading
from psfleet.report.schema import CheckpointInfo
from psfleet.report.summary import summary


def test_the_summary_lists_the_attempts_if_there_was_more_than_one() -> None:
    text = io.StringIO()
    for report in (DONE, TWO_ATTEMPTS):
        summary(Console(file=text, width=200, color_system=None), report, Path("out"))
    first, _, second = text.getvalue().partition("status:          failed (exit code 75)")
    assert "attempts" not in first
    assert "attempts:        2: done at step 1900, failed at step 1900 (exit code 75)" in second
    assert "steps:           1900 of 1900" in second


def test_the_values_of_a_summary_are_below_each_other_whatever_the_metrics_are_called() -> None:
    text = io.StringIO()
    report = DONE.model_copy(update={"eval": {"weighted_accuracy": 0.5}})
    summary(Console(file=text, width=200, color_system=None), report, Path("out"))
    lines = text.getvalue().splitlines()
    assert "test weighted_accuracy: 0.5" in lines
    assert {line[:24].rstrip()[-1:] for line in lines} == {":"}, lines


@pytest.mark.parametrize("manifest", [None, "{}", "no json"])
def test_the_summary_of_a_run_with_a_damaged_checkpoint_ends(tmp_path: Path, manifest: str | None) -> None:
    """The report says what is wrong, and the command exits with the report's code."""
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    text = io.StringIO()
    report = DONE.model_copy(update={"checkpoint": CheckpointInfo(path=str(tmp_path), step=1900)})
    summary(Console(file=text, width=500, color_system=None), report, Path("out"))
    assert f"checkpoint:      {tmp_path}" in text.getvalue()


def test_the_summary_says_what_was_lost_with_dynamic_sharding() -> None:
    text = io.StringIO()
    data = DataReading(sharding="dynamic", delivered=117, lost=3, ended_epochs=2)
    for report in (DONE, DONE.model_copy(update={"data": data})):
        summary(Console(file=text, width=200, color_system=None), report, Path("out"))
    assert text.getvalue().count("examples:") == 1
    assert "examples:        117 delivered, 3 lost in 2 epochs (sharding: dynamic)" in text.getvalue()
