"""Calls of a handle on a run whose disk takes no checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import PARAMETERS
from support.live_chief import DISK_FULL, live

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.errors import UsageError

STALL_SECS = 0.3
CALL_SECS = 20.0
NEVER = 1 << 62
[KERNEL] = [spec for spec in PARAMETERS if spec.name == "dense/kernel"]
REFUSED = rf"no checkpoint could be written for {STALL_SECS:g} s: {DISK_FULL}; the run continues, and nothing has"


CALLS: list[tuple[int | None, Callable[[psfleet.Run], Any]]] = [
    (None, lambda run: run.save()),
    (None, lambda run: run.weights.get()),
    (None, lambda run: run.weights.set({"dense/kernel": np.zeros(KERNEL.shape, KERNEL.dtype)})),
    (45, lambda run: run.save()),
    (45, lambda run: run.evaluate().result(CALL_SECS)),
    (45, lambda run: run.gradient(weights={})),
]


@pytest.mark.parametrize(("held_at", "call"), CALLS)
def test_a_call_ends_with_the_cause_if_no_checkpoint_can_be_written(
    tmp_path: Path, held_at: int | None, call: Callable[[psfleet.Run], Any]
) -> None:
    with live(tmp_path, held_at, deadlines={"stall_secs": STALL_SECS}) as chief:
        chief.is_full_before = NEVER
        run = psfleet.attach(tmp_path)
        with pytest.raises(UsageError, match=REFUSED):
            call(run)
        assert chief.generation == 1
        chief.is_full_before = 0
        assert read_manifest(run.save()).generation == 1


def test_a_checkpoint_is_asked_for_again_until_the_disk_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_service.chief.operations.RETRY_SECS", 0.05)
    with live(tmp_path, deadlines={"stall_secs": CALL_SECS}) as chief:
        chief.is_full_before = 60
        saved = read_manifest(psfleet.attach(tmp_path).save())
        assert saved.step >= 60
