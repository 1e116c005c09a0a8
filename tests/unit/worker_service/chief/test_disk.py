"""A disk that neither gives nor refuses what the chief reads: the run ends with 75, and names the folder."""

from __future__ import annotations

import json
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkpoint_samples import FROZEN, PARAMETERS, STATE, random_values, save
from support.chief_samples import sample_context, sample_job, shard_state

from psfleet.control import control_pb2 as pb
from psfleet.errors import LOST_PEERS
from psfleet.layout import Layout, TensorSpec
from psfleet.polling import run_within
from psfleet.report.history import History, Point
from psfleet.report.schema import EvaluationLog, Report
from psfleet.report.training_metrics import TrainingMetricsLog
from psfleet.run_folder import STARTED
from psfleet.service import settings
from worker_service.chief import recovery as recovery_module
from worker_service.chief import storage_watch
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.components import chief_components
from worker_service.chief.disk import Disk
from worker_service.chief.events import Events
from worker_service.chief.last_checkpoint import LastCheckpoint
from worker_service.chief.recorder import Recorder
from worker_service.chief.recovery import Recovery
from worker_service.chief.run_finisher import RunFinisher
from worker_service.chief.storage import Storage

WAIT_SECS = 20.0
PIECE, NUM_PIECES = 1 << 20, 4
EMPTY = pb.ShardState(run="run")

Read = Callable[[Path, Disk], object]


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Whoever opens the file waits until the block is left: it is a pipe that nobody writes to."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        path.unlink()


def recover(out: Path, disk: Disk) -> object:
    context = sample_context(out)
    events = Events(out, context.job, disk=disk)
    return Recovery(context, lambda: random_values(1), {}, events).recover([EMPTY, EMPTY], 0)


def commit(out: Path, disk: Disk) -> object:
    context = sample_context(out)
    committer = CheckpointCommitter(context, {}, Storage(Events(out, context.job, disk=disk), 1.0))
    return committer.update([shard_state(41), shard_state(41)])


def make_components(out: Path, disk: Disk) -> object:
    front: Any = None
    return chief_components(settings.read({"PSFLEET_OUT": str(out)}), sample_context(out), front, disk=disk)


def make_recorder(out: Path, disk: Disk) -> object:
    job, metric = sample_job(), TensorSpec("metric/total", (1,), is_saved=False)
    layout = Layout.plan(PARAMETERS, [*STATE, metric], FROZEN, num_ps=2, bucket_bytes=100)
    return Recorder(out, job, layout, None, Storage(Events(out, job, disk=disk), 1.0))


def read_draft(out: Path, disk: Disk) -> object:
    context, unused = sample_context(out), None
    storage = Storage(Events(out, context.job, disk=disk), 1.0)
    attempt: Any = SimpleNamespace(started=0.0)
    made: Any = partial(RunFinisher, context, unused, unused)
    return made(storage, attempt).resumed_report(save(out / "checkpoints", 41))


def read_events(out: Path, disk: Disk) -> object:
    return Events(out, sample_job(), disk=disk)


def expect_75(read: Read, out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message with which the watch ends the run and the process while a read hangs."""
    monkeypatch.setattr(storage_watch, "LOOK_SECS", 0.01)
    ends: list[int] = []
    outcomes: list[pb.Outcome] = []
    disk = Disk()

    def read_until_released() -> None:
        with suppress(Exception):
            read(out, disk)

    threading.Thread(target=read_until_released, daemon=True).start()
    run_within(WAIT_SECS, lambda: storage_watch.watch(disk, 0.1, outcomes.append, ends.append))
    assert ends == [LOST_PEERS]
    assert [outcome.exit_code for outcome in outcomes] == [LOST_PEERS]
    message: str = outcomes[0].message
    return message


@pytest.mark.parametrize(
    ("read", "file", "named"),
    [
        pytest.param(recover, "manifest.json", "checkpoints", id="restore"),
        pytest.param(commit, "manifest.json", "checkpoints", id="the newest checkpoint"),
        pytest.param(make_components, EvaluationLog.FILE_NAME, "", id="evaluations"),
        pytest.param(make_recorder, EvaluationLog.FILE_NAME, "", id="evaluations without a program"),
        pytest.param(make_recorder, TrainingMetricsLog.FILE_NAME, "", id="training metrics"),
        pytest.param(read_draft, Report.DRAFT_NAME, Report.DRAFT_NAME, id="the draft of a report"),
        pytest.param(read_events, "events.jsonl", "events.jsonl", id="events"),
    ],
)
def test_a_read_that_never_ends_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read, file: str, named: str
) -> None:
    folder = save(tmp_path / "checkpoints", 40).folder
    with hanging((folder if file == "manifest.json" else tmp_path) / file):
        message = expect_75(read, tmp_path, monkeypatch)
    assert message == f"the disk has not answered for 0.1 s to a read of {tmp_path / named}"


def test_a_last_checkpoint_that_cannot_be_read_back_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(tmp_path / "checkpoints", 40)

    def verify(out: Path, disk: Disk) -> None:
        unused: Any = None
        last = LastCheckpoint(sample_context(out), unused, disk)
        monkeypatch.setattr(last, "_await_last", lambda generation, is_moved: saved)
        last.commit(1)

    with hanging(saved.folder / saved.parts[0].file):
        message = expect_75(verify, tmp_path, monkeypatch)
    assert message.endswith(f"to a read of {saved.folder}")


def test_an_initial_checkpoint_that_the_disk_never_takes_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(recovery_module, "write_initial", lambda *_, **__: ended.wait(WAIT_SECS))
    message = expect_75(recover, tmp_path, monkeypatch)
    ended.set()
    assert message.endswith(f"to a write of {tmp_path / 'checkpoints'}")


def test_a_read_of_a_large_file_that_takes_longer_does_not_end_the_run(tmp_path: Path) -> None:
    """The checkpoint is read piece by piece, each of them in time."""
    path = tmp_path / "part"
    os.mkfifo(path)
    now = [0.0]
    disk = Disk(lambda: now[0])
    received: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        with disk.reading(path), path.open("rb", buffering=0) as file:
            while piece := file.read(100):
                received.put(piece)

    threading.Thread(target=read, daemon=True).start()
    with path.open("wb", buffering=0) as file:
        for _ in range(5):
            file.write(bytes(100))
            received.get(timeout=WAIT_SECS)
            assert disk.stuck(1.0) == ""
            now[0] += 0.9
        assert disk.stuck(1.0) == ""
        now[0] += 0.2
        assert disk.stuck(1.0) == f"the disk has not answered for 1 s to a read of {path}"


def bytes_from_disk(thread: int) -> int:
    """What a thread has caused to be read from the disk itself; called by another, because this reads a file, too."""
    text = Path(f"/proc/self/task/{thread}/io").read_text(encoding="ascii")
    return next(int(line.partition(":")[2]) for line in text.splitlines() if line.startswith("read_bytes"))


def test_a_read_of_a_large_file_through_memory_that_takes_longer_does_not_end_the_run(tmp_path: Path) -> None:
    """As safetensors reads a checkpoint that is to be evaluated: no call returns a number of bytes."""
    path, now = tmp_path / "part", [0.0]
    with path.open("wb") as file:
        file.write(bytes(NUM_PIECES * PIECE))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    disk = Disk(lambda: now[0])
    may_read, has_read = threading.Semaphore(0), threading.Semaphore(0)

    def read() -> None:
        with disk.reading(path), path.open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # The kernel must not read ahead.
            pages.madvise(mmap.MADV_RANDOM)
            for piece in range(NUM_PIECES):
                has_read.release()
                may_read.acquire()
                assert pages[piece * PIECE] == 0

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert has_read.acquire(timeout=WAIT_SECS), "the file is not opened"
    assert disk.stuck(1.0) == ""
    for _ in range(NUM_PIECES - 1):
        before = bytes_from_disk(reader.native_id or 0)
        may_read.release()
        assert has_read.acquire(timeout=WAIT_SECS), "a piece is not read"
        if bytes_from_disk(reader.native_id or 0) == before:
            pytest.skip("this file system is in memory")
        now[0] += 0.9
        assert disk.stuck(1.0) == ""
    now[0] += 1.1
    assert disk.stuck(1.0) == f"the disk has not answered for 1 s to a read of {path}"
    may_read.release()


def test_a_chief_that_is_started_again_continues_the_time_of_training(tmp_path: Path) -> None:
    (tmp_path / STARTED).write_text(json.dumps({"name": "", "time": 50.0}))
    point = Point(time=60.0, step=1, generation=1, loss=1.0, step_secs=0.1, examples_per_sec=1.0, training_seconds=7.5)
    History(tmp_path / History.FILE_NAME).append(point)
    front: Any = SimpleNamespace(initial_values=None)
    found = settings.read({"PSFLEET_OUT": str(tmp_path), settings.CAUSE: "it was killed"})
    made = chief_components(found, sample_context(tmp_path), front)
    assert made.recorder.training_secs == 7.5
