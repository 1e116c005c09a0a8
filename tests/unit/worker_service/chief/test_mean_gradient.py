"""The mean gradient for a handle: what it is refused for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.chief_samples import sample_job

from psfleet.control import run_control_pb2 as run_pb
from psfleet.errors import UsageError
from worker_service.chief.mean_gradient import MeanGradient


def test_a_program_with_several_losses_has_no_single_gradient() -> None:
    rules = {name: {"name": "sgd", "learning_rate": 0.1} for name in ("critic", "actor")}
    train = {"steps": 100, "batch_size": 8, "alternate": ["critic", "actor"]}
    job = sample_job(optimizer=None, optimizers=rules, train=train)
    operations: Any = SimpleNamespace(context=SimpleNamespace(job=job))
    holding: Any = SimpleNamespace(record=object())
    request = run_pb.TensorMessage(batches=1)
    with pytest.raises(UsageError, match="`gradient` is for a program with one loss, and this one has several"):
        MeanGradient(operations, holding).mean(request, {}, lambda: True)
