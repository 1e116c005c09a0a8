"""How the chief fetches the parts that ps hold: what it writes, what it has dropped, and what it tries again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import contents, sample_layout, save
from support.chief_samples import Ps, sample_context, sample_storage, shard_state

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.part_writing import EncodedPart, encode_part
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError
from psfleet.polling import wait_until
from worker_service.chief import part_fetcher
from worker_service.chief.checkpoints import PART, CheckpointCommitter

LAYOUT = sample_layout()
STEP = 40
FINAL_STEP = 100
WAIT_SECS = 10.0


class Stream:
    """What a ps sends; a step of 16 bytes at a time."""

    def __init__(self, part: EncodedPart, before_chunk: Callable[[], None]) -> None:
        self._chunks = part.blocks(16)
        self._before_chunk = before_chunk
        self.cancelled = threading.Event()
        self.is_idle = False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.is_idle = True
            self._before_chunk()
            if self.cancelled.is_set():
                raise LostPeerError("cancelled")
            self.is_idle = False
            yield chunk

    def idle_secs(self) -> float:
        """See Download."""
        return 3600.0 if self.is_idle else 0.0

    def cancel(self) -> None:
        """See Download."""
        self.cancelled.set()


class HoldingPs(Ps):
    """A ps that holds its part of a step until it is released.

    Attributes:
        before_chunk: Called before each chunk that it sends.
        released: (step, error) of each release.
    """

    def __init__(self, shard: int, step: int = STEP) -> None:
        super().__init__(shard_state(step + 1, final_step=FINAL_STEP))
        self.part = encode_part(shard, LAYOUT, contents(LAYOUT, 1)[shard], step, 1, "run")
        self.step = step
        self.before_chunk: Callable[[], None] = lambda: None
        self.streams: list[Stream] = []
        self.released: list[tuple[int, str]] = []
        record = self.part.record()
        self.states[0].parts.add(
            step=step, file=record.file, num_bytes=record.num_bytes, sha256=record.sha256, held=True
        )

    def fetch_part(self, generation: int, step: int) -> Stream:
        """See PsClient."""
        assert (generation, step) == (1, self.step)
        self.streams.append(Stream(self.part, lambda: self.before_chunk()))
        return self.streams[-1]

    def release_part(self, generation: int, step: int, error: str = "") -> None:
        """See PsClient."""
        assert generation == 1
        self.released.append((step, error))
        for part in self.states[0].parts:
            if part.step == step and part.held:
                part.held = False
                if error:
                    part.CopyFrom(pb.SavedPart(step=step, error=error))


class Chief:
    """The part of a chief that commits checkpoints."""

    def __init__(self, out: Path, ps: Sequence[Ps]) -> None:
        self.ps = ps
        self.context = sample_context(out, ps, layout=LAYOUT)
        self.storage = sample_storage(self.context)
        self.committer = CheckpointCommitter(self.context, {}, self.storage)

    def beat(self) -> Checkpoint | None:
        """What happens after each heartbeat; the newest committed checkpoint."""
        self.committer.update([one.describe() for one in self.ps])
        return self.committer.newest

    def committed(self) -> Checkpoint:
        """Beats until there is a checkpoint."""
        found = wait_until(self.beat, WAIT_SECS, "a checkpoint", poll_secs=0.01)
        assert found is not None, "wait_until checked it"
        return found

    def await_released(self) -> None:
        """Beats until no ps holds a part."""
        wait_until(lambda: self.beat() or self.is_released(), WAIT_SECS, "the parts to be dropped", poll_secs=0.01)
        wait_until(self.is_released, WAIT_SECS, "the parts to be dropped", poll_secs=0.01)

    def is_released(self) -> bool:
        """Whether no ps holds a part."""
        return not any(part.held for one in self.ps for state in one.states for part in state.parts)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_fetcher, "RETRY_SECS", 0.01)
    monkeypatch.setattr(part_fetcher, "LOOK_SECS", 0.01)


def test_a_checkpoint_is_committed_once_its_parts_are_fetched_and_dropped_then(tmp_path: Path) -> None:
    ps = [HoldingPs(0), HoldingPs(1)]
    chief = Chief(tmp_path / "out", ps)
    checkpoint = chief.committed()
    expected = save(tmp_path / "expected", STEP)
    assert (checkpoint.step, checkpoint.parts) == (STEP, expected.parts)
    for part in checkpoint.parts:
        assert (checkpoint.folder / part.file).read_bytes() == (expected.folder / part.file).read_bytes()
    chief.await_released()
    assert {error for one in ps for _, error in one.released} == {""}
    assert [len(one.streams) for one in ps] == [1, 1], "it was fetched again"


def test_heartbeats_and_the_parts_of_other_ps_do_not_wait_for_a_slow_ps(tmp_path: Path) -> None:
    ps, go_on = [HoldingPs(0), HoldingPs(1)], threading.Event()
    ps[0].before_chunk = lambda: go_on.wait(WAIT_SECS) and None
    chief = Chief(tmp_path, ps)
    assert [chief.beat() for _ in range(3)] == [None] * 3
    wait_until(lambda: list(tmp_path.rglob("ps-1-of-2.safetensors")), WAIT_SECS, "the part of ps 1")
    go_on.set()
    assert chief.committed().step == STEP


def test_a_ps_that_sends_nothing_is_given_up_and_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen ps: no error ends the stream. Its part is whole once it is thawed."""
    monkeypatch.setattr(part_fetcher, "IDLE_SECS", 0.05)
    ps = [HoldingPs(0), HoldingPs(1)]
    ps[1].before_chunk = lambda: ps[1].streams[-1].cancelled.wait(WAIT_SECS) and None
    chief = Chief(tmp_path, ps)
    chief.beat()
    wait_until(lambda: chief.beat() or len(ps[1].streams) > 1, WAIT_SECS, "the second attempt", poll_secs=0.01)
    assert not list((tmp_path / "checkpoints").rglob("ps-1*"))
    ps[1].before_chunk = lambda: None
    assert chief.committed().step == STEP


@pytest.mark.parametrize("fault", ["lost", "changed"])
def test_a_part_that_does_not_arrive_whole_is_no_file_and_is_fetched_again(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    ps = [HoldingPs(0), HoldingPs(1)]

    def lose() -> None:
        if len(ps[0].streams) < 4:
            raise LostPeerError("ps at ps-0:2223: gone")

    part = ps[0].part
    if fault == "lost":
        ps[0].before_chunk = lose
    else:
        ps[0].part = encode_part(0, LAYOUT, contents(LAYOUT, 2)[0], STEP, 1, "run")
    chief = Chief(tmp_path, ps)
    wait_until(lambda: chief.beat() or len(ps[0].streams) > 2, WAIT_SECS, "a second attempt", poll_secs=0.01)
    assert not list((tmp_path / "checkpoints").rglob("ps-0*"))
    assert chief.committer.newest is None
    ps[0].part = part
    assert chief.committed().step == STEP
    assert len([message for message in caplog.messages if "were not fetched" in message]) == 1


def refuse_writes(out: Path) -> Path:
    """Has a file where the folder of the checkpoint is to be."""
    (out / "checkpoints").mkdir(parents=True)
    blocked = out / "checkpoints" / f"{STEP:08d}-g1"
    blocked.write_text("")
    return blocked


def test_parts_that_the_disk_refuses_are_dropped_with_its_error_and_training_continues(tmp_path: Path) -> None:
    """As where each ps writes for itself: the next due checkpoint is the next attempt."""
    refuse_writes(tmp_path)
    ps = [HoldingPs(0), HoldingPs(1)]
    chief = Chief(tmp_path, ps)
    chief.await_released()
    cause = f"{tmp_path}/checkpoints: File exists"
    assert {one.states[0].parts[0].error for one in ps} == {cause}
    chief.beat()
    assert chief.committer.newest is None
    events = [(event.kind, event.role, event.cause) for event in chief.storage.events.all()]
    assert events == [("checkpoint_failed", "ps", cause)] * 2


def test_a_disk_that_stays_full_is_one_event_for_each_ps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A part that a ps holds is not yet written: it does not say that the disk takes parts again."""
    caplog.set_level("INFO")
    (tmp_path / "checkpoints").write_text("")
    ps = [HoldingPs(0), HoldingPs(1)]
    chief = Chief(tmp_path, ps)
    for step in (STEP, STEP + 10):
        for shard, one in enumerate(ps if step > STEP else ()):
            one.step = step
            one.states[0].parts.append(HoldingPs(shard, step).states[0].parts[0])
        chief.await_released()
        chief.beat()
    assert [event.role for event in chief.storage.events.all()] == ["ps", "ps"]
    assert not [message for message in caplog.messages if "can write again" in message]


@pytest.mark.parametrize("last", ["final_step", "hold_at"])
def test_parts_of_the_last_step_are_held_until_the_disk_takes_them(tmp_path: Path, last: str) -> None:
    blocked, ps = refuse_writes(tmp_path), [HoldingPs(0), HoldingPs(1)]
    for one in ps:
        setattr(one.states[0], last, STEP)
    chief = Chief(tmp_path, ps)
    wait_until(lambda: chief.beat() or len(ps[0].streams) > 2, WAIT_SECS, "further attempts", poll_secs=0.01)
    assert [one.released for one in ps] == [[], []]
    assert chief.storage.cause(PART)
    blocked.unlink()
    assert chief.committed().step == STEP
    assert not chief.storage.cause(PART)
    assert [event.kind for event in chief.storage.events.all()] == ["checkpoint_failed"]


@pytest.mark.parametrize("has", ["a later part", "an error"])
def test_a_part_of_a_step_that_another_ps_does_not_have_is_dropped(tmp_path: Path, has: str) -> None:
    """It would be held for ever, and the third step after it would wait for ever."""
    ps: list[Any] = [HoldingPs(0), HoldingPs(1, step=STEP + 10 if has == "a later part" else STEP)]
    if has == "an error":
        ps[1].states[0].parts[0].CopyFrom(pb.SavedPart(step=STEP, error="no chief has fetched it"))
    chief = Chief(tmp_path, ps)
    chief.beat()
    wait_until(lambda: ps[0].released, WAIT_SECS, "the part to be dropped", poll_secs=0.01)
    assert ps[0].released == [(STEP, "")]
    assert not ps[1].released
    assert not ps[0].streams
    if has == "a later part":
        assert not chief.storage.events.all(), "nothing has failed"


def test_a_chief_that_replaces_one_which_died_after_its_commit_has_the_parts_dropped(tmp_path: Path) -> None:
    saved = save(tmp_path / "checkpoints", STEP)
    ps = [HoldingPs(0), HoldingPs(1)]
    chief = Chief(tmp_path, ps)
    assert chief.beat() == saved
    chief.await_released()
    assert [one.streams for one in ps] == [[], []], "what is committed was fetched again"


def test_a_chief_that_replaces_one_which_died_before_its_commit_commits_what_that_one_has_fetched(
    tmp_path: Path,
) -> None:
    saved = save(tmp_path / "checkpoints", STEP)
    (saved.folder / "manifest.json").unlink()
    (saved.folder / f".{saved.parts[1].file}.0f3a.tmp").write_bytes(b"half of a part")
    ps = [HoldingPs(0), HoldingPs(1)]
    ps[0].states[0].parts[0].held = False
    assert Chief(tmp_path, ps).committed().parts == saved.parts
    assert [len(one.streams) for one in ps] == [0, 1]
    names = {path.name for path in saved.folder.iterdir()}
    assert names == {"manifest.json", *(part.file for part in saved.parts)}


def test_a_checkpoint_that_waited_for_the_one_before_does_not_wait_for_a_heartbeat(tmp_path: Path) -> None:
    """With short steps, each of them would take as long as the time between two heartbeats."""
    ps = [HoldingPs(0), HoldingPs(1)]
    for shard, one in enumerate(ps):
        follower = HoldingPs(shard, STEP + 10)

        def release(generation: int, step: int, error: str = "", one: Any = one, follower: Any = follower) -> None:
            HoldingPs.release_part(one, generation, step, error)
            if step == STEP:
                one.step, one.part = follower.step, follower.part
                one.states[0].parts.append(follower.states[0].parts[0])

        one.release_part = release  # type: ignore[method-assign]
    chief = Chief(tmp_path, ps)
    chief.beat()

    def newest() -> int:
        return -1 if chief.committer.newest is None else chief.committer.newest.step

    wait_until(newest, WAIT_SECS, "the second checkpoint", done=lambda step: step == STEP + 10, poll_secs=0.01)
