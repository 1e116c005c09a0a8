"""What the chief does when a file of the run folder cannot be written: an event at once, and training continues."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from support.chief_samples import sample_job

from psfleet.errors import LOST_PEERS, ReplacedError, StorageError
from psfleet.layout import Layout
from psfleet.polling import run_within, wait_until
from psfleet.report.history import History
from psfleet.report.schema import EventLog
from worker_service.chief import storage as storage_module
from worker_service.chief import storage_watch
from worker_service.chief.board import Board
from worker_service.chief.disk import Disk
from worker_service.chief.events import Events
from worker_service.chief.recorder import Recorder
from worker_service.chief.storage import Storage

WAIT_SECS = 10.0
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EIO)


def raising(code: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


def events_of(out: Path, clock: Callable[[], float] = time.monotonic) -> Events:
    return Events(out, sample_job(), disk=Disk(clock))


def causes(events: Events) -> list[tuple[str, str]]:
    return [(event.kind, event.cause) for event in events.all()]


def train(recorder: Recorder, step: int) -> None:
    """Ends one step, whose progress is due."""
    recorder._last = (float("-inf"), step - 1)
    session: Any = SimpleNamespace(gradient_norm=lambda: None, measure_norm=bool)
    batch: Any = None
    recorder.step(session, batch, step, loss=0.5, secs=0.1)


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_progress_that_cannot_be_written_is_one_event_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    caplog.set_level("INFO")
    events = events_of(tmp_path)
    layout = Layout.plan([], [], [], 2, 4096)
    recorder = Recorder(tmp_path, sample_job(), layout, None, Storage(events, 1.0))
    recorder.start(0)
    with monkeypatch.context() as patch:
        patch.setattr(History, "append", raising(code))
        train(recorder, 1)
        assert causes(events) == [("write_failed", f"history.jsonl: {os.strerror(code)}")]
        train(recorder, 2)
    train(recorder, 3)
    recorder.close()
    assert len(causes(events)) == 1
    assert [point.step for point in History(tmp_path / History.FILE_NAME).read()] == [3]
    assert [record.event for record in caplog.records if hasattr(record, "event")] == [
        "write_failed", "progress", "progress", "write_resumed", "progress"
    ]  # fmt: skip


def test_events_of_a_full_disk_are_in_the_report_and_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = events_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(EventLog, "append", raising(errno.ENOSPC))
        events.add("worker", 1, "restarted", "it was killed")
        assert causes(events) == [("restarted", "it was killed")]
        assert not (tmp_path / EventLog.FILE_NAME).exists()
    events.add("ps", 0, "restarted", "it was killed, too")
    assert EventLog(tmp_path / EventLog.FILE_NAME).read() == events.all()
    assert [event.role for event in events.all()] == ["worker", "ps"]


def test_another_cause_is_another_event(tmp_path: Path) -> None:
    events = events_of(tmp_path)
    storage = Storage(events, 1.0)
    for code in (errno.ENOSPC, errno.ENOSPC, errno.EROFS):
        with storage.writing("a file"):
            raising(code)()
    assert [cause for _, cause in causes(events)] == [
        "a file: No space left on device",
        "a file: Read-only file system",
    ]


def test_summaries_resume_in_a_new_file_after_their_folder_was_deleted_and_could_not_be_made(tmp_path: Path) -> None:
    events = events_of(tmp_path)
    board = Board(tmp_path, Storage(events, 1.0))

    def write(step: int) -> None:
        board.write(step, lambda: tf.summary.scalar("loss", 1.0))

        wait_until(lambda: all(each.done() for each in board._waiting), WAIT_SECS, "the summaries")

    folder = tmp_path / "tensorboard"
    write(1)
    shutil.rmtree(folder)
    folder.touch()
    write(2)
    write(3)
    assert [kind for kind, _ in causes(events)] == ["write_failed"] * 2
    assert causes(events)[0][1] == f"TensorBoard summaries: No such file or directory ({folder})"
    assert "a directory" in causes(events)[1][1]
    folder.unlink()
    write(4)
    board.close()
    assert len(causes(events)) == 2
    [file] = folder.iterdir()
    assert [event.step for event in tf.compat.v1.train.summary_iterator(str(file)) if event.summary.value] == [4]


def test_the_report_is_written_again_until_there_is_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "RETRY_SECS", 0.001)
    attempts: list[int] = []

    def write() -> None:
        attempts.append(1)
        if len(attempts) < 4:
            raising(errno.ENOSPC)()

    events = events_of(tmp_path)
    Storage(events, 5.0).insist("the report", write)
    assert len(attempts) == 4
    assert causes(events) == [("write_failed", "the report: No space left on device")]


def test_a_report_that_can_never_be_written_ends_in_75(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "RETRY_SECS", 0.001)
    with pytest.raises(StorageError, match=r"for 0.05 s: the report: Read-only file system") as caught:
        Storage(events_of(tmp_path), 0.05).insist("the report", raising(errno.EROFS))
    assert caught.value.exit_code == LOST_PEERS


def test_a_disk_that_never_answers_ends_the_run_and_the_process_with_75(tmp_path: Path) -> None:
    """A thread waits for a network file system whose server is gone; the summaries have a thread of their own."""
    now, ends, outcomes = [0.0], [], []
    storage = Storage(events_of(tmp_path, lambda: now[0]), 600.0)
    with storage.writing("TensorBoard summaries", is_awaited=False), storage.writing("history.jsonl"):
        now[0] = 599.0
        assert not storage.disk.stuck(600.0)
        now[0] = 600.0
        storage_watch.watch(storage.disk, 600.0, outcomes.append, ends.append)
    message = "the disk has not answered for 600 s to a write of history.jsonl"
    assert [(outcome.exit_code, outcome.message) for outcome in outcomes] == [(LOST_PEERS, message)]
    assert ends == [LOST_PEERS]
    now[0] = 10_000.0
    assert not storage.disk.stuck(600.0), "it has ended"


def test_an_event_that_a_disk_never_takes_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other thread with an event waits for it, the training thread too."""
    ended, ends, outcomes = threading.Event(), [], []
    events = events_of(tmp_path)
    monkeypatch.setattr(EventLog, "append", lambda *_: ended.wait(WAIT_SECS))
    monkeypatch.setattr(storage_watch, "LOOK_SECS", 0.01)
    assert not events.disk.stuck(0.0)
    thread = threading.Thread(target=events.add, args=("ps", 0, "restarted", "killed"), daemon=True)
    thread.start()
    run_within(WAIT_SECS / 2, lambda: storage_watch.watch(events.disk, 0.05, outcomes.append, ends.append))
    assert ends == [LOST_PEERS]
    assert "to a write of events.jsonl" in outcomes[0].message
    ended.set()
    thread.join(WAIT_SECS)
    assert not events.disk.stuck(0.0), "it has ended"


def test_the_log_of_a_disk_that_never_answers_does_not_hold_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ends, never = [0.0], [], threading.Event()
    storage = Storage(events_of(tmp_path, lambda: now[0]), 600.0)
    monkeypatch.setattr("psfleet.service.process.LOG_SECS", 0.05)
    monkeypatch.setattr(storage_watch.logger, "error", lambda *_, **__: never.wait(WAIT_SECS))
    with storage.writing("history.jsonl"):
        now[0] = 600.0
        run_within(WAIT_SECS / 2, lambda: storage_watch.watch(storage.disk, 600.0, replaced, ends.append))
    never.set()
    assert ends == [LOST_PEERS]


def replaced(outcome: object) -> None:
    raise ReplacedError(f"another chief ends the run, not with {outcome}")


def test_a_chief_that_was_frozen_in_a_write_ends_neither_the_run_nor_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds its write too old when it wakes up; the disk answers a moment later."""
    now, looks, ends, outcomes = [0.0], [], [], []
    storage = Storage(events_of(tmp_path, lambda: now[0]), 600.0)
    writing = storage.writing("history.jsonl")
    writing.__enter__()

    def pause(secs: float) -> None:
        looks.append(secs)
        if len(looks) == 1:
            now[0] = 10_000.0
        elif len(looks) == 2:
            writing.__exit__(None, None, None)
        elif len(looks) == 4:
            raise InterruptedError("the test ends")

    monkeypatch.setattr(storage_watch.time, "sleep", pause)
    with pytest.raises(InterruptedError):
        storage_watch.watch(storage.disk, 600.0, outcomes.append, ends.append)
    assert (outcomes, ends) == ([], [])
