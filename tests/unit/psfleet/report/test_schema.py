"""The report, history and events can be read after the writer was killed at any point."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.report_samples import DONE, FAILED

from psfleet.errors import BadJobError, UsageError
from psfleet.report.history import History, Point
from psfleet.report.schema import Evaluation, EvaluationLog, Event, EventLog, Report
from psfleet.report.training_metrics import TrainingMetrics, TrainingMetricsLog


def point(step: int, generation: int = 0, loss: float = 1.0, first_step: int | None = None) -> Point:
    measured = {"time": float(step), "step_secs": 0.1, "examples_per_sec": 10.0}
    return Point(step=step, generation=generation, loss=loss, first_step=first_step, **measured)


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert DONE.write(tmp_path) == tmp_path / "report.json"
    assert Report.read(tmp_path) == Report.read(str(tmp_path)) == DONE


def test_a_report_of_a_run_without_data_has_all_fields(tmp_path: Path) -> None:
    FAILED.write(tmp_path)
    content = json.loads((tmp_path / "report.json").read_text())
    assert set(content) == set(Report.model_fields)
    assert content["loss"] is None
    assert content["step_secs"] == {"p50": None, "p95": None}


def test_writing_a_report_again_replaces_it_and_leaves_no_other_file(tmp_path: Path) -> None:
    FAILED.write(tmp_path)
    DONE.write(tmp_path)
    assert Report.read(tmp_path).status == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_report_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DONE.write(tmp_path)

    def disk_is_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_is_full)
    with pytest.raises(OSError, match="No space left"):
        FAILED.write(tmp_path)
    assert Report.read(tmp_path) == DONE


def test_a_report_is_valid_json_even_when_the_loss_is_not_a_number(tmp_path: Path) -> None:
    DONE.model_copy(update={"loss": math.nan, "eval": {"loss": math.inf}}).write(tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert (content["loss"], content["eval"]) == ("NaN", {"loss": "Infinity"})
    again = Report.read(tmp_path)
    assert again.loss is not None
    assert math.isnan(again.loss)
    assert again.eval == {"loss": math.inf}


def test_an_error_is_one_line() -> None:
    assert Report(**{**FAILED.model_dump(), "error": "lost\n  ps 1\n"}).error == "lost ps 1"


def test_a_missing_report_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"report\.json: No such file"):
        Report.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"status": ', "content: Invalid JSON"),
        ('{"status": "fine"}', "status: Input should be 'done', 'stopped' or 'failed'"),
        (FAILED.model_dump_json().replace('"name"', '"colour": 1, "name"'), "colour: Extra inputs"),
        (FAILED.model_dump_json().replace('"staleness":{}', '"staleness":{"old": 1}'), "staleness.old"),
    ],
)
def test_a_foreign_report_is_refused_with_the_field(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(BadJobError) as caught:
        Report.read(tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_history_without_a_file_is_empty(tmp_path: Path) -> None:
    history = History(tmp_path / History.FILE_NAME)
    assert history.read() == []
    assert history.curve() == []


def test_a_history_is_read_by_a_path_that_is_text(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(path).append(point(1))
    assert History(str(path)).curve() == [point(1)]


def test_a_history_is_continued_by_another_process(tmp_path: Path) -> None:
    History(tmp_path / "history.jsonl").append(point(1))
    History(tmp_path / "history.jsonl").append(point(2))
    assert [each.step for each in History(tmp_path / "history.jsonl").read()] == [1, 2]


def test_a_history_keeps_losses_that_are_not_numbers(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.append(point(1, loss=math.nan))
    assert math.isnan(history.read()[0].loss)


def test_a_line_torn_at_any_byte_is_skipped_and_the_next_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    line = point(2).model_dump_json().encode()
    for length in range(len(line)):
        path.unlink(missing_ok=True)
        history = History(path)
        history.append(point(1))
        path.write_bytes(path.read_bytes() + line[:length])
        assert [each.step for each in history.read()] == [1]
        history.append(point(3))
        assert [each.step for each in history.read()] == [1, 3]


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(point(2).model_dump_json().encode())
    history = History(path)
    history.append(point(3))
    assert [each.step for each in history.read()] == [2, 3]


def test_a_whole_line_that_is_no_point_is_refused_with_its_number_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(path).append(point(1))
    with path.open("a") as file:
        file.write('{"step": 2}\n')
    History(path).append(point(3))
    with pytest.raises(BadJobError, match=r"history\.jsonl line 2: time: Field required"):
        History(path).read()
    assert [each.step for each in History(path).readable()] == [1, 3]


@pytest.mark.parametrize(
    ("written", "surviving"),
    [
        ([(10, 0), (20, 0), (30, 0)], [(10, 0), (20, 0), (30, 0)]),
        ([(10, 0), (20, 0), (30, 0), (20, 1), (30, 1)], [(10, 0), (20, 1), (30, 1)]),
        ([(10, 0), (20, 0), (30, 0), (25, 1)], [(10, 0), (20, 0), (25, 1)]),
        ([(10, 0), (20, 0), (15, 1), (20, 1), (12, 2)], [(10, 0), (12, 2)]),
        ([(10, 0), (20, 0), (5, 1)], [(5, 1)]),
        ([(10, 0), (10, 0)], [(10, 0)]),
    ],
)
def test_a_curve_holds_only_what_no_rollback_undid(
    tmp_path: Path, written: list[tuple[int, int]], surviving: list[tuple[int, int]]
) -> None:
    history = History(tmp_path / "history.jsonl")
    for step, generation in written:
        history.append(point(step, generation))
    assert [(each.step, each.generation) for each in history.curve()] == surviving
    assert len(history.read()) == len(written)


@pytest.mark.parametrize(
    ("written", "surviving"),
    [
        # Of the generation that began at step 10 the first point is at step 24: step 15 was undone before it.
        ([(10, 0, 0), (15, 0, 0), (24, 1, 10)], [10, 24]),
        ([(10, 0, 0), (15, 0, 0), (24, 1, 15)], [10, 15, 24]),
        ([(10, 0, 0), (15, 1, 10), (20, 1, 10)], [10, 15, 20]),
        ([(10, 0, 0), (20, 0, 0), (21, 1, 5)], [21]),
        ([(10, 0, None), (15, 0, None), (24, 1, None)], [10, 15, 24]),
    ],
)
def test_a_record_replaces_those_of_earlier_generations_after_the_step_at_which_its_own_began(
    tmp_path: Path, written: list[tuple[int, int, int | None]], surviving: list[int]
) -> None:
    history, log = History(tmp_path / "history.jsonl"), EvaluationLog(tmp_path / "evaluations.jsonl")
    training = TrainingMetricsLog(tmp_path / "training_metrics.jsonl")
    for step, generation, first_step in written:
        at: dict[str, Any] = {"time": 0.0, "step": step, "generation": generation, "first_step": first_step}
        history.append(point(step, generation, first_step=first_step))
        log.append(Evaluation(**at, secs=0.1, metrics={}))
        training.append(TrainingMetrics(**at, metrics={}))
    assert [each.step for each in history.curve()] == surviving
    assert [each.step for each in log.curve()] == [each.step for each in training.curve()] == surviving


def test_events_survive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / EventLog.FILE_NAME
    first = Event(time=1.0, role="ps", index=1, kind="restarted", cause="signal 9", steps_lost=4)
    second = Event(time=2.0, role="ps", index=1, kind="restarted", cause="by the launcher")
    EventLog(path).append(first)
    path.write_bytes(path.read_bytes() + b'{"time": 1.')
    EventLog(path).append(second)
    assert EventLog(path).read() == [first, second]
