"""What the chief answers to a handle when checkpoints come and go, or the run ends meanwhile."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.chief_samples import Ps, sample_context, shard_state

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.control import control_pb2 as pb
from psfleet.control import run_control_pb2 as run_pb
from psfleet.errors import NoCheckpointError, UsageError
from worker_service.chief.operations import Operations

SECS = 20.0


def operations(out: Path, found: list[Checkpoint], outcome: pb.Outcome | None = None) -> Operations:
    """Those of a chief that commits these checkpoints, one at each look at the fleet, and then no other one."""

    class Committer:
        newest: Checkpoint | None = None if outcome is None else found[-1]
        cause = ""

        def update(self, states: Any) -> None:
            self.newest = found.pop(0) if found else self.newest

        def request(self) -> None:
            pass

    heartbeat, committer = SimpleNamespace(outcome=outcome), Committer()
    context = sample_context(out, [Ps(shard_state(40)) for _ in range(2)])
    return Operations(context, heartbeat, committer)  # type: ignore[arg-type]


def test_a_checkpoint_that_newer_ones_replace_while_it_is_verified_is_saved_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = [save(tmp_path, step) for step in (40, 45, 50)]
    made = operations(tmp_path, saved[:])
    monkeypatch.setattr("worker_service.chief.operations.verify", lambda each: replace(each))

    def replace(checkpoint: Checkpoint) -> None:
        """What `checkpoint.keep: 1` does to the first one while its parts are read."""
        if checkpoint is saved[0]:
            shutil.rmtree(checkpoint.folder)
            made.committer.update([])
            raise NoCheckpointError(f"{checkpoint.folder} cannot be read")

    assert made.save(lambda: True) is saved[2]


def test_a_checkpoint_that_is_corrupt_is_an_error(tmp_path: Path) -> None:
    saved = save(tmp_path, 40)
    (saved.folder / saved.parts[1].file).write_bytes(b"x")
    with pytest.raises(NoCheckpointError, match="has 1 bytes"):
        operations(tmp_path, [saved]).save(lambda: True)


def test_a_run_is_held_once_every_ps_is_at_the_step(tmp_path: Path) -> None:
    saved, late = save(tmp_path, 40), [shard_state(39), shard_state(40)]
    made, states = operations(tmp_path, [saved]), [shard_state(40), *late]
    for state in states:
        state.hold_at = 40
    made.context = sample_context(tmp_path, [Ps(states[0]), Ps(*late)])
    looks: list[None] = []
    assert made.held_checkpoint(1, lambda: looks.append(None) is None) is saved
    assert len(looks) == len(late)


@pytest.mark.parametrize("step", [60, 100])
def test_the_final_step_of_a_run_is_that_of_its_last_checkpoint(tmp_path: Path, step: int) -> None:
    """`evaluate.stop` can end a run of 100 steps earlier."""
    done = operations(tmp_path, [save(tmp_path, step)], pb.Outcome(exit_code=0))
    assert done.final_step("train") == step


def test_a_call_that_is_repeated_waits_for_its_first_attempt_and_another_one_is_refused() -> None:
    """Its connection broke: the chief is about to find that the caller of the first attempt has gone."""
    unused: Any = None
    served = Operations(unused, unused, unused)
    first, other = run_pb.RunCall(call="1", owner="one"), run_pb.RunCall(call="2", owner="two")
    waits, entered = threading.Event(), threading.Event()
    served._changed = Watched(waits)

    def repeat() -> None:
        with served.turn(first, "save"):
            entered.set()

    with served.turn(first, "save"):
        with pytest.raises(UsageError, match="`save` of one is in progress"), served.turn(other, "get"):
            pytest.fail("two operations at a time")
        repeated = threading.Thread(target=repeat)
        repeated.start()
        assert waits.wait(SECS)
        assert not entered.is_set()
    assert entered.wait(SECS)
    repeated.join(SECS)


class Watched(threading.Condition):
    """A condition that says when a thread waits for it."""

    def __init__(self, waits: threading.Event) -> None:
        super().__init__()
        self._waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        """See threading.Condition."""
        self._waits.set()
        return super().wait(timeout)
