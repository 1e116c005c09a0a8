"""Files of records that are larger than what a process may hold: their last record, streams and thinned curves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from support.peak_memory import peak_bytes
from support.program_samples import sample_job
from support.report_samples import DONE

from psfleet.errors import BadJobError
from psfleet.report import compare, html, json_lines
from psfleet.report.history import History, Point
from psfleet.report.training_metrics import TrainingMetrics, TrainingMetricsLog


def line(step: int, generation: int = 0, first_step: int = 0) -> str:
    point = Point(
        time=1.0, step=step, generation=generation, first_step=first_step, loss=1.0, step_secs=0.1, examples_per_sec=1.0
    )
    return point.model_dump_json()


def history_of(folder: Path, *lines: str, end: str = "\n") -> History:
    path = folder / History.FILE_NAME
    path.write_text("\n".join(lines) + end)
    return History(path)


def drain(history: History) -> None:
    for _ in history.stream():
        pass


@pytest.mark.parametrize(
    "read", [History.last, drain, lambda history: history.curve(100)], ids=["last", "stream", "curve"]
)
def test_ten_times_as_many_records_need_no_more_memory(tmp_path: Path, read: Callable[[History], object]) -> None:
    peaks = []
    # The first call makes what pydantic and Python keep.
    for number in (1_000, 1_000, 10_000):
        history = history_of(tmp_path, *map(line, range(number)))
        peaks.append(peak_bytes(partial(read, history)))
    assert peaks[2] < 2 * peaks[1]


def test_pages_of_runs_with_ten_times_as_many_records_need_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (html, compare):
        monkeypatch.setattr(module, "DRAWN_RECORDS", 100)
    (tmp_path / "job.json").write_text(sample_job().model_dump_json())
    for make in (lambda: html.page(DONE, tmp_path), lambda: compare.ComparedRun.read(tmp_path)):
        peaks = []
        for number in (1_000, 1_000, 10_000):
            history_of(tmp_path, *map(line, range(number)))
            metrics = TrainingMetrics(time=1.0, step=0, generation=0, metrics={"auc": 0.5})
            lines = [metrics.model_copy(update={"step": step}).model_dump_json() for step in range(number)]
            (tmp_path / TrainingMetricsLog.FILE_NAME).write_text("\n".join(lines))
            peaks.append(peak_bytes(make))
        assert peaks[2] < 2 * peaks[1]


@pytest.mark.parametrize("block_bytes", [7, 1 << 16])
def test_the_last_record_is_that_of_the_last_line_that_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, block_bytes: int
) -> None:
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", block_bytes)
    assert History(tmp_path / "none").last() is None
    assert history_of(tmp_path, end="").last() is None
    for lines, end in (
        ([line(1), line(2)], "\n"),
        ([line(1), line(2)], ""),
        ([line(1), line(2), line(3)[:-1]], ""),
        ([line(1), line(2), "", line(3)[:30]], "\n"),
        ([line(2)], "\n"),
    ):
        history = history_of(tmp_path, *lines, end=end)
        assert history.last() == history.readable()[-1]
        assert history.readable()[-1].step == 2
    assert history_of(tmp_path, line(3)[:-1], end="").last() is None
    assert caplog.messages == []


def test_lines_of_another_version_after_the_last_record_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = history_of(tmp_path, '{"step": 0}', line(1), '{"step": 2}', '{"later": 3}')
    found = history.last()
    assert found is not None
    assert found.step == 1
    [warning] = caplog.messages
    assert warning == f"2 lines of {history.path} are skipped; the first one: {history.path}: time: Field required"


def test_a_stream_ends_at_a_line_of_another_version(tmp_path: Path) -> None:
    history = history_of(tmp_path, line(1), '{"step": 2}', line(3))
    stream = history.stream()
    assert next(stream).step == 1
    with pytest.raises(BadJobError, match=r"history\.jsonl line 2: time: Field required"):
        next(stream)


@pytest.mark.parametrize("number", [1, 9, 10, 11, 12, 99, 100, 1_000, 1_001])
def test_a_long_curve_keeps_records_at_equal_distances_and_both_ends(tmp_path: Path, number: int) -> None:
    history = history_of(tmp_path, *map(line, range(number)))
    steps = [point.step for point in history.curve(10)]
    if number <= 10:
        assert steps == list(range(number))
        return
    assert 5 <= len(steps) <= 10
    assert (steps[0], steps[-1]) == (0, number - 1)
    [distance] = {after - before for before, after in pairwise(steps[:-1])}
    assert 0 < steps[-1] - steps[-2] <= distance


def test_a_long_curve_has_nothing_that_a_rollback_has_undone(tmp_path: Path) -> None:
    before, after = (line(step) for step in range(100)), (line(step, 1, 40) for step in range(50, 71))
    history = history_of(tmp_path, *before, *after)
    whole, kept = history.curve(), history.curve(10)
    assert [point.step for point in whole] == [*range(41), *range(50, 71)]
    assert len(kept) <= 10
    assert all(point in whole for point in kept)
    assert (kept[0], kept[-1]) == (whole[0], whole[-1])


def test_a_curve_that_a_rollback_has_shortened_is_thinned_anew(tmp_path: Path) -> None:
    before = [*map(line, range(1, 101))]
    few, many = ([line(step, 1, 0) for step in range(1, last + 1)] for last in (7, 100))
    assert [point.step for point in history_of(tmp_path, *before, *few).curve(10)] == [*range(1, 8)]
    once, again = history_of(tmp_path, *before).curve(10), history_of(tmp_path, *before, *many).curve(10)
    assert [point.step for point in again] == [point.step for point in once]


@pytest.mark.parametrize("began", [1, 7, 30, 64, 90, 99])
@pytest.mark.parametrize("number", [1, 2, 3, 50])
def test_a_curve_has_its_first_and_its_newest_record_after_each_rollback(
    tmp_path: Path, began: int, number: int
) -> None:
    before, after = map(line, range(100)), (line(step, 1, began) for step in range(began + 1, began + 1 + number))
    history = history_of(tmp_path, *before, *after)
    kept = [point.step for point in history.curve(10)]
    assert len(kept) <= 10
    assert (kept[0], kept[-1]) == (0, began + number)
    assert kept == sorted(set(kept))
