"""New weights whose manifest is there although the write of it failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import sample_layout, save
from support.chief_samples import Ps, sample_context, sample_storage, shard_state
from support.rows import first_rows

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.replacement import specs_of
from psfleet.checkpoint.store import committed_checkpoints, newest, verify
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.store_lease import LEASE_SECS, StoreLease
from psfleet.checkpoint.weight_changes import WeightChanges
from psfleet.control import run_control_pb2 as pb
from psfleet.errors import ReplacedError, UsageError
from psfleet.job.update import Update
from psfleet.report.hold import HoldRecord
from worker_service.chief.holding import Holding
from worker_service.chief.weight_setter import WeightSetter

ZEROS = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs_of(sample_layout()).items()}
ONES = {name: np.ones_like(value) for name, value in ZEROS.items()}
FIRST, SECOND = (pb.RunCall(call=name, owner=name) for name in ("first", "second"))


class Fleet:
    """The operations of a chief whose fleet is held at step 40, and starts from what the chief adopts."""

    def __init__(self, out: Path, base: Checkpoint) -> None:
        self.context = sample_context(out, [Ps(shard_state(40)) for _ in range(2)])
        self.committer: Any = SimpleNamespace(newest=base, update=lambda states: None, adopt=self._adopt)
        self._generation = base.generation

    def _adopt(self, made: Checkpoint) -> None:
        self._generation, folder = made.generation + 1, made.folder.parent
        self.committer.newest = made
        self._base = save(folder, made.step, generation=self._generation, extra=made.extra)  # type: ignore[arg-type]

    def training(self, states: Any) -> Any:
        """See `Operations`."""
        return [shard_state(40, generation=self._generation)]

    def held_checkpoint(self, generation: int, is_active: Any) -> Checkpoint:
        """See `Operations`."""
        newest = self.committer.newest
        return newest if newest.generation == generation else self._base

    def check_active(self, is_active: Any) -> None:
        """See `Operations`."""

    def is_running(self) -> bool:
        """See `Operations`."""
        return True

    def require_running(self, what: str) -> None:
        """See `Operations`."""

    def pause(self) -> None:
        """See `Operations`."""


def setter(out: Path, base: Checkpoint) -> WeightSetter:
    HoldRecord(40).write(out)
    fleet: Any = Fleet(out, base)
    storage = sample_storage(fleet.context)
    return WeightSetter(fleet, Holding(out, storage.disk, Update()), storage.events)


def test_a_change_that_the_disk_has_made_before_it_fails_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    made = setter(tmp_path, save(tmp_path / "checkpoints", 40))
    monkeypatch.setattr("psfleet.checkpoint.whole.sync_folder", refuse)
    checkpoint = made.set(FIRST, ZEROS, 0, lambda: True)
    assert (checkpoint.generation, WeightChanges.of(checkpoint.extra)) == (2, WeightChanges(1, ("first",)))


def test_a_change_that_the_disk_refuses_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = setter(tmp_path, save(tmp_path / "checkpoints", 40))
    (tmp_path / "checkpoints" / ".00000040-g2.tmp").write_bytes(b"")
    with pytest.raises(UsageError, match="nothing has changed"):
        made.set(FIRST, ZEROS, 0, lambda: True)
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    assert found.generation == 1


@pytest.mark.parametrize("repeated", first_rows([FIRST, SECOND]), ids=["the same call", "another call"])
def test_a_store_that_has_made_a_change_and_does_not_say_so_is_asked_again(
    bucket: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: pb.RunCall
) -> None:
    """Nothing is said to be unchanged, and no later call writes its parts below the manifest of the first one."""
    root, create, read = bucket / "checkpoints", StoreFolder.create, StoreFolder.read_bytes
    made = setter(tmp_path, save(root, 40))  # type: ignore[arg-type]

    def lose(folder: StoreFolder, content: bytes = b"") -> Any:
        if content:
            create(folder, content)
        elif "g2" not in str(folder) or not folder.is_file():
            return read(folder)
        raise StoreError(str(folder), "the answer is lost")

    with monkeypatch.context() as faults:
        faults.setattr(StoreFolder, "create", lose)
        faults.setattr(StoreFolder, "read_bytes", lose)
        with pytest.raises(StoreError, match="the answer is lost"):
            made.set(FIRST, ZEROS, 0, lambda: True)
    if repeated is SECOND:
        with pytest.raises(UsageError, match="`set` of second is late: the weights were replaced 1 time by now, and 0"):
            made.set(SECOND, ONES, 0, lambda: True)
    checkpoint = made.set(repeated, ZEROS if repeated is FIRST else ONES, int(repeated is SECOND), lambda: True)
    assert WeightChanges.of(checkpoint.extra).calls[-1] == repeated.call
    assert checkpoint.generation == (2 if repeated is FIRST else 4)
    for found in committed_checkpoints(root):
        verify(found)


def test_a_generation_that_a_recovery_has_ended_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the end of the step and the lock, which the recovery had."""
    made = setter(tmp_path, save(tmp_path / "checkpoints", 40))
    monkeypatch.setattr(made._operations, "training", lambda states: [shard_state(40, generation=2)])
    assert made._replace(1, FIRST, ZEROS, lambda: True) is None
    assert [found.generation for found in committed_checkpoints(tmp_path / "checkpoints")] == [1]


def test_a_chief_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    made, state = setter(tmp_path, save(tmp_path / "checkpoints", 40)), shard_state(40)
    state.workers.add(index=0, incarnation=made._context.incarnation + 1, address="new:2222")
    made._context = replace(made._context, fleet=sample_context(tmp_path, [Ps(state)]).fleet)
    with pytest.raises(ReplacedError):
        made.set(FIRST, ZEROS, 0, lambda: True)
    assert [found.generation for found in committed_checkpoints(tmp_path / "checkpoints")] == [1]


def test_numbers_that_are_not_finite_change_nothing(tmp_path: Path) -> None:
    """Also those of a program that checks nothing itself."""
    made = setter(tmp_path, save(tmp_path / "checkpoints", 40))
    name = next(name for name, value in ZEROS.items() if value.dtype == np.float32)
    with pytest.raises(UsageError, match=f"tensor '{name}' has NaN or infinity"):
        made.set(FIRST, {name: np.full_like(ZEROS[name], np.nan)}, 0, lambda: True)
    assert [found.generation for found in committed_checkpoints(tmp_path / "checkpoints")] == [1]


def test_nothing_changes_in_a_store_that_another_fleet_may_have(bucket: StoreFolder, tmp_path: Path) -> None:
    root, now = bucket / "checkpoints", 0.0
    made = setter(tmp_path, save(root, 40))  # type: ignore[arg-type]
    lease = StoreLease(bucket, "fleet", "host", lambda: now)
    assert lease.try_acquire()
    made._context = replace(made._context, lease=lease)
    now = LEASE_SECS
    with pytest.raises(StoreError, match="the lease on the prefix was not renewed"):
        made.set(FIRST, ZEROS, 0, lambda: True)
    assert [found.generation for found in committed_checkpoints(root)] == [1]


def test_a_later_step_of_an_earlier_generation_is_no_place_to_go_back_to(tmp_path: Path) -> None:
    """After a rollback from a checkpoint that is corrupt, or was committed late: a recovery would prefer its step."""
    root = tmp_path / "checkpoints"
    later = save(root, 50, generation=1)
    with pytest.raises(UsageError, match=r"00000050-g1 is of a later step than 40, .* nothing has changed"):
        setter(tmp_path, save(root, 40, generation=2)).set(FIRST, ZEROS, 0, lambda: True)
    assert newest(root) == later
