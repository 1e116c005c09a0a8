"""How long a ps holds a checkpoint part for the chief, and who may read it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import contents, sample_layout

from ps_service.checkpoint_writer import CheckpointWriter, SavedPart
from ps_service.part_holder import PartHolder
from psfleet.checkpoint.part_writing import encode_part, write_chunks
from psfleet.checkpoint.parts import ShardContent
from psfleet.errors import LostPeerError
from psfleet.polling import run_within, wait_until

LAYOUT = sample_layout(num_ps=1)
WAIT_SECS = 10.0


@pytest.fixture
def chief() -> SimpleNamespace:
    """Whether there is a chief that fetches parts: `chief.follows`."""
    return SimpleNamespace(follows=True)


@pytest.fixture
def writer(chief: SimpleNamespace) -> Any:
    """Of a ps that does not share the chief's folder."""
    made = CheckpointWriter(None, "run", 1, 0, LAYOUT, lambda message, code: None, lambda: chief.follows)
    yield made
    made.stop()


def content() -> ShardContent:
    """Of the only ps, all finite."""
    [found] = contents(LAYOUT, 1)
    slots = {name: np.ones_like(values) for name, values in found.slots.items()}
    state = LAYOUT.state.pack({spec.name: np.ones(spec.shape, spec.dtype) for spec in LAYOUT.state.specs})
    return ShardContent(np.ones_like(found.parameters), slots, found.scalars, state, found.frozen)


def save(writer: CheckpointWriter, step: int) -> None:
    writer.save(step, content)


def held(writer: CheckpointWriter, step: int) -> SavedPart:
    """The part of a step once it is held."""
    wait_until(lambda: writer.held.is_held(step) and writer.has_ended(step), WAIT_SECS, f"the part of step {step}")
    return writer.parts()[-1]


def test_a_held_part_is_announced_with_the_sum_of_what_the_chief_reads(writer: Any, tmp_path: Path) -> None:
    save(writer, 10)
    part = held(writer, 10)
    assert part.is_held
    assert writer.is_busy
    with writer.held.reading(10, lambda: None) as chunks:
        assert write_chunks(tmp_path, "part", chunks).sha256 == part.record.sha256


def test_the_next_part_waits_until_the_chief_has_the_one_before(writer: Any) -> None:
    save(writer, 10)
    held(writer, 10)
    save(writer, 20)
    assert not writer.await_turn(0.3), "the second snapshot was read while the first part is held: a third copy"
    assert writer.held.is_held(10)
    writer.held.release(10)
    assert held(writer, 20).step == 20
    assert [(part.step, part.is_held, part.error, bool(part.record)) for part in writer.parts()] == [
        (10, False, "", True),
        (20, True, "", True),
    ]


@pytest.mark.parametrize("leaves", [False, True], ids=["there was none", "it leaves"])
def test_without_a_chief_that_fetches_training_does_not_wait_and_the_newest_part_is_held(
    writer: Any, chief: SimpleNamespace, leaves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    chief.follows = leaves
    save(writer, 10)
    held(writer, 10)
    save(writer, 20)
    if leaves:
        assert not writer.await_turn(0.3)
        chief.follows = False
    held(writer, 20)
    assert not writer.held.is_held(10)
    assert [part.step for part in writer.parts()] == [20], "an error would be an event of the run"
    expected = "the checkpoint part of step 10 is dropped: no chief has fetched it, and the next one is due"
    assert expected in caplog.messages


def test_a_part_that_the_chief_cannot_write_is_reported_as_one_that_this_ps_cannot_write(writer: Any) -> None:
    save(writer, 10)
    held(writer, 10)
    writer.held.release(10, "/out: No space left on device")
    assert writer.parts() == [SavedPart(10, None, "/out: No space left on device")]


def test_the_release_of_another_step_changes_nothing(writer: Any) -> None:
    save(writer, 20)
    held(writer, 20)
    writer.held.release(10, "late")
    assert held(writer, 20).is_held


def test_closing_drops_the_part_and_ends_its_stream_and_the_wait_for_room(writer: Any) -> None:
    """A generation that has ended needs none, and its memory is that of the next one."""
    cancelled: list[int] = []
    save(writer, 10)
    held(writer, 10)
    save(writer, 20)
    with writer.held.reading(10, lambda: cancelled.append(10)):
        run_within(WAIT_SECS, writer.close)
        assert cancelled == [10]
    assert not writer.held.is_held(10)
    assert not writer.parts(), "the snapshot that waited was written"


@pytest.fixture
def holder() -> PartHolder:
    """Holds the part of step 10."""
    made = PartHolder(lambda: True, lambda *_: None)
    made.make_room(threading.Event())
    made.hold(10, encode_part(0, LAYOUT, content(), 10, 1, "run"))
    return made


def test_a_part_that_is_not_held_cannot_be_read_now(holder: PartHolder) -> None:
    with pytest.raises(LostPeerError, match="step 20 is not held"), holder.reading(20, lambda: None):
        pass


def test_a_second_stream_ends_the_first_and_a_release_the_second(holder: PartHolder) -> None:
    """The first is that of a chief that is frozen: it would keep the part in memory, and a thread."""
    cancelled: list[str] = []
    with (
        holder.reading(10, lambda: cancelled.append("first")),
        holder.reading(10, lambda: cancelled.append("second")) as chunks,
    ):
        assert cancelled == ["first"]
        assert next(chunks)
        holder.release(10)
        assert cancelled == ["first", "second"]
    with pytest.raises(LostPeerError), holder.reading(10, lambda: None):
        pass
    assert cancelled == ["first", "second"], "a stream that has ended was ended again"
