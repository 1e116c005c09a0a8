"""What a ps does with a snapshot that is not finite, and with one that the disk refuses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import sample_layout

from ps_service import checkpoint_writer
from ps_service.checkpoint_writer import CheckpointWriter, SavedPart
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.parts import PartRecord, ShardContent
from psfleet.errors import BUG
from psfleet.polling import run_within, wait_until

LAYOUT = sample_layout(num_ps=1)
STEP = 7
WAIT_SECS = 10.0


def finite_content() -> ShardContent:
    """What the only ps of the layout holds; frozen tensors are not finite, as constants of a program may be."""
    size = LAYOUT.parameters.size
    return ShardContent(
        parameters=np.ones(size, np.float32),
        slots={"m": np.zeros(size, np.float32), "v": np.ones(size, np.float32)},
        scalars={"beta1_power": np.float32(0.5)},
        state=LAYOUT.state.pack({spec.name: np.full(spec.shape, 1, spec.dtype) for spec in LAYOUT.state.specs}),
        frozen=LAYOUT.frozen.pack({spec.name: np.full(spec.shape, np.inf) for spec in LAYOUT.frozen.specs}),
    )


def with_value(vector: np.ndarray, position: int, value: float) -> np.ndarray:
    changed = vector.copy()
    changed[position] = value
    return changed


def save(folder: Path, content: ShardContent) -> tuple[str, list[str]]:
    """The error of the part, and what the writer reported."""
    reported: list[str] = []
    writer = CheckpointWriter(folder, "run", 1, 0, LAYOUT, lambda message, _: reported.append(message))
    writer.save(STEP, lambda: content)
    wait_until(lambda: writer.has_ended(STEP), WAIT_SECS, "the part")
    writer.close()
    [part] = writer.parts()
    assert (part.record is None) == bool(part.error)
    return part.error, reported


def position_of(name: str) -> int:
    """The last element of a parameter."""
    flat = LAYOUT.parameters
    [at] = [start + spec.size - 1 for spec, start in zip(flat.specs, flat.offsets, strict=True) if spec.name == name]
    return at


def test_a_finite_part_is_written_whatever_is_in_the_gaps_and_constants(tmp_path: Path) -> None:
    content = finite_content()
    gap = position_of("dense/kernel") + 1
    assert save(tmp_path, replace(content, parameters=with_value(content.parameters, gap, np.nan))) == ("", [])
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "expected",
    [
        "parameter out/kernel",
        "optimizer slot v of dense/bias",
        "optimizer scalar beta1_power",
        "state norm/moving_mean",
    ],
)
def test_a_tensor_that_is_not_finite_is_named_and_nothing_is_written(
    tmp_path: Path, expected: str, value: float
) -> None:
    content = finite_content()
    if expected.startswith("parameter"):
        content.parameters = with_value(content.parameters, position_of("out/kernel"), value)
    elif expected.startswith("optimizer slot"):
        content.slots["v"] = with_value(content.slots["v"], position_of("dense/bias"), value)
    elif expected.startswith("optimizer scalar"):
        content.scalars["beta1_power"] = np.float32(value)
    else:
        named = LAYOUT.state.unpack(content.state)
        named["norm/moving_mean"][-1] = value
        content.state = LAYOUT.state.pack(named)
    message = f"{expected} is NaN or infinite at step {STEP}, expected finite numbers"
    assert save(tmp_path, content) == (message, [message])
    assert list(tmp_path.iterdir()) == []


class Disk:
    """A disk that refuses to write: `write_part` until `has_space`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_space = False
        self.refused = threading.Semaphore(0)
        self._write = write_part
        monkeypatch.setattr(checkpoint_writer, "write_part", self.write_part)
        monkeypatch.setattr(checkpoint_writer, "RETRY_SECS", 0.001)

    def write_part(self, *args: Any) -> PartRecord:
        if self.has_space:
            return self._write(*args)
        self.refused.release()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def writer_of(folder: Path) -> CheckpointWriter:
    return CheckpointWriter(folder, "run", 1, 0, LAYOUT, lambda message, exit_code: None)


def test_a_part_that_the_disk_refuses_is_reported_and_the_next_one_is_written(tmp_path: Path, disk: Disk) -> None:
    writer = writer_of(tmp_path)
    writer.save(STEP, finite_content)
    wait_until(lambda: writer.has_ended(STEP), WAIT_SECS, "the part")
    assert writer.parts() == [SavedPart(STEP, None, f"{tmp_path}: No space left on device")]
    assert writer.has_ended(STEP)
    disk.has_space = True
    writer.save(STEP + 1, finite_content)
    wait_until(lambda: writer.has_ended(STEP + 1), WAIT_SECS, "the next part")
    writer.close()
    assert [(part.step, part.error) for part in writer.parts()][1:] == [(STEP + 1, "")]


def test_the_part_of_the_final_step_is_kept_and_written_when_there_is_space(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    writer = writer_of(tmp_path)
    writer.save(STEP, finite_content, is_final=lambda: True)
    for _ in range(3):
        assert disk.refused.acquire(timeout=WAIT_SECS), "the writer does not try again"
    assert [part.error for part in writer.parts()] == [f"{tmp_path}: No space left on device"]
    assert not writer.has_ended(STEP)
    disk.has_space = True
    wait_until(lambda: writer.has_ended(STEP), WAIT_SECS, "the part")
    writer.close()
    [part] = writer.parts()
    assert part.record is not None
    assert len(caplog.messages) == 1, "each attempt was logged"


def test_a_part_is_not_tried_again_once_the_final_step_is_a_later_one(tmp_path: Path, disk: Disk) -> None:
    """A stop that one ps accepted and another refused is scheduled again at a later step, and training continues."""
    final_step = STEP
    writer = writer_of(tmp_path)
    writer.save(STEP, finite_content, is_final=lambda: final_step <= STEP)
    assert disk.refused.acquire(timeout=WAIT_SECS)
    assert not writer.has_ended(STEP)
    final_step = STEP + 2
    wait_until(lambda: writer.has_ended(STEP), WAIT_SECS, "the end of the attempts for a step that is not final")
    disk.has_space = True
    writer.save(STEP + 2, finite_content, is_final=lambda: final_step <= STEP + 2)
    wait_until(lambda: writer.has_ended(STEP + 2), WAIT_SECS, "the part of the final step")
    writer.close()
    assert [(part.step, bool(part.error)) for part in writer.parts()] == [(STEP, True), (STEP + 2, False)]


def test_closing_ends_the_attempts_for_the_final_part(tmp_path: Path, disk: Disk) -> None:
    writer = writer_of(tmp_path)
    writer.save(STEP, finite_content, is_final=lambda: True)
    assert disk.refused.acquire(timeout=WAIT_SECS)
    run_within(WAIT_SECS, writer.close)
    assert writer.has_ended(STEP)


def test_a_part_of_which_half_is_written_leaves_no_file(tmp_path: Path) -> None:
    """A file size limit is a full disk that needs no file system of its own."""
    program = f"""
import resource, signal, sys
sys.path[:0] = {[str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]!r}
from unit.ps_service.test_checkpoint_writer import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
print(save(Path({str(tmp_path)!r}), finite_content()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "File too large" in done.stdout
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_snapshot_is_read_once_the_part_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part is being written and one snapshot waits; the step that takes a third waits for its turn."""
    writing, write = threading.Event(), write_part

    def slow(*args: Any) -> PartRecord:
        assert writing.wait(WAIT_SECS)
        return write(*args)

    monkeypatch.setattr(checkpoint_writer, "write_part", slow)
    writer = writer_of(tmp_path)
    writer.save(1, finite_content)
    assert writer.await_turn(WAIT_SECS), "the first snapshot was not read at once"
    writer.save(2, finite_content)
    assert not writer.await_turn(0.05), "a second snapshot was read while the first part was being written"
    writing.set()
    wait_until(lambda: writer.has_ended(2), WAIT_SECS, "the second part")
    writer.close()
    assert [part.step for part in writer.parts()] == [1, 2]


def test_closing_drops_the_snapshot_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part would belong to a generation that has ended, and the next one waits for the close."""
    began, writing, write = threading.Event(), threading.Event(), write_part
    reads: list[int] = []

    def slow(*args: Any) -> PartRecord:
        began.set()
        assert writing.wait(WAIT_SECS)
        return write(*args)

    def read() -> ShardContent:
        reads.append(2)
        return finite_content()

    monkeypatch.setattr(checkpoint_writer, "write_part", slow)
    writer = writer_of(tmp_path)
    writer.save(1, finite_content)
    assert began.wait(WAIT_SECS)
    writer.save(2, read)
    writer.stop()
    try:
        assert writer.await_turn(0), "the graph is not closed before a snapshot is read that nobody needs"
    finally:
        writing.set()
    run_within(WAIT_SECS, writer.close)
    assert ([part.step for part in writer.parts()], reads) == ([1], [])


def test_a_disk_that_never_answers_does_not_hold_the_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A recovery, a reset and the end of a run on a shared ps close the shard."""
    began, answered = threading.Event(), threading.Event()

    def hang(*args: Any) -> PartRecord:
        began.set()
        answered.wait(WAIT_SECS)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoint_writer, "write_part", hang)
    monkeypatch.setattr(checkpoint_writer, "CLOSE_SECS", 0.1)
    writer = writer_of(tmp_path)
    writer.save(STEP, finite_content)
    assert began.wait(WAIT_SECS)
    try:
        run_within(WAIT_SECS / 2, writer.close)
    finally:
        answered.set()
    expected = f"{tmp_path} has not taken a checkpoint part of generation 1 within 0.1 s: its write is abandoned"
    assert expected in caplog.messages


def test_a_snapshot_that_is_being_read_at_the_close_is_not_written(tmp_path: Path) -> None:
    began, reading = threading.Event(), threading.Event()

    def read() -> ShardContent:
        began.set()
        assert reading.wait(WAIT_SECS)
        return finite_content()

    writer = writer_of(tmp_path)
    writer.save(STEP, read)
    assert began.wait(WAIT_SECS)
    writer.stop()
    assert not writer.await_turn(0), "the graph would be closed during the read"
    reading.set()
    run_within(WAIT_SECS, writer.close)
    assert writer.parts() == []
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_snapshot_that_cannot_be_read_ends_the_run_and_blocks_no_step(tmp_path: Path) -> None:
    failures: list[tuple[str, int]] = []
    writer = CheckpointWriter(tmp_path, "run", 1, 0, LAYOUT, lambda *failure: failures.append(failure))

    def fail() -> ShardContent:
        raise RuntimeError("boom")

    writer.save(STEP, fail)
    assert writer.await_turn(WAIT_SECS)
    writer._thread.shutdown(wait=True)
    assert failures == [(f"saving step {STEP} failed: RuntimeError: boom", BUG)]
