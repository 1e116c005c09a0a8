"""The mean gradient of a held run: over the workers of the job, each of which counts once, and no spare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.chief_samples import sample_job

from psfleet.addresses import Address
from psfleet.control import run_control_pb2 as pb
from psfleet.control import run_control_pb2_grpc
from psfleet.control.server import serving
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import LostPeerError, UsageError
from psfleet.job.fleet import Fleet
from psfleet.layout import TensorSpec
from psfleet.processes.ports import free_addresses
from worker_service.chief.mean_gradient import MeanGradient

WEIGHTS = {"w": np.ones(3, np.float32)}
WORKERS, SPARES = 2, 1


class Scaled(run_control_pb2_grpc.WorkerControlServicer):
    """A worker whose loss is a number, and whose gradient is that number of times what it was sent."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.batches: list[int] = []

    def OwnGradient(self, request_iterator: Any, context: Any) -> Any:
        """See run_control.proto."""
        head, tensors = receiving(request_iterator, lambda specs: None)
        self.batches.append(head.batches)
        mine = {name: np.float32(self.factor) * value for name, value in tensors.items()}
        yield from sending(head.caller, mine, loss=self.factor)


def mean_of(addresses: list[Address], alive: list[bool]) -> MeanGradient:
    """The chief's, of workers and spares with these addresses."""
    workers = [
        SimpleNamespace(index=index, address=address.data, is_alive=is_alive)
        for index, (address, is_alive) in enumerate(zip(addresses, alive, strict=True))
    ]
    states = [SimpleNamespace(workers=workers)]
    job = SimpleNamespace(fleet=Fleet(workers=WORKERS, spares=SPARES))
    context = SimpleNamespace(identity=None, job=job, fleet=SimpleNamespace(describe=lambda: states))
    operations: Any = SimpleNamespace(
        context=context, states=states, check_active=lambda is_active: None, require_running=lambda what: None
    )
    mean = MeanGradient(operations, holding=None)  # type: ignore[arg-type]
    mean._trained = lambda: {"w": TensorSpec("w", (3,), "float32")}  # type: ignore[method-assign]
    return mean


def test_it_is_the_mean_over_the_workers_without_the_spares() -> None:
    workers = [Scaled(factor) for factor in (1.0, 4.0, 100.0)]
    addresses = free_addresses(len(workers))
    with ExitStack() as stack:
        for address, worker in zip(addresses, workers, strict=True):
            stack.enter_context(serving(address, worker_control=worker))
        asked = pb.TensorMessage(batches=3)
        mean = mean_of(addresses, [True] * 3)
        loss, gradient = mean._asked(mean._workers(), asked, WEIGHTS, lambda: True)
    assert loss == 2.5
    np.testing.assert_array_equal(gradient["w"], 2.5 * WEIGHTS["w"])
    assert [worker.batches for worker in workers] == [[3], [3], []]


def test_a_worker_that_is_away_is_named() -> None:
    with pytest.raises(LostPeerError, match=r"^worker 1 is away$"):
        mean_of(free_addresses(3), [True, False, True])._workers()


def test_a_program_with_several_losses_has_no_single_gradient() -> None:
    rules = {name: {"name": "sgd", "learning_rate": 0.1} for name in ("critic", "actor")}
    train = {"steps": 100, "batch_size": 8, "alternate": ["critic", "actor"]}
    job = sample_job(optimizer=None, optimizers=rules, train=train)
    operations: Any = SimpleNamespace(context=SimpleNamespace(job=job))
    holding: Any = SimpleNamespace(record=object())
    request = pb.TensorMessage(batches=1)
    with pytest.raises(UsageError, match="`gradient` is for a program with one loss, and this one has several"):
        MeanGradient(operations, holding).mean(request, {}, lambda: True)


def test_workers_that_share_their_batches_have_no_second_one_ready() -> None:
    job = sample_job(input={"from": "loaders", "sharding": "dynamic"})
    operations: Any = SimpleNamespace(context=SimpleNamespace(job=job))
    holding: Any = SimpleNamespace(record=object())
    with pytest.raises(UsageError, match=r"gradient\(batches=2\): expected 1 with input.sharding dynamic"):
        MeanGradient(operations, holding).mean(pb.TensorMessage(batches=2), {}, lambda: True)


class Clock:
    """Time that passes only as a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """See the module time."""
        return self.now

    def pause(self) -> None:
        """Until the next look at the fleet; no call takes three hours."""
        self.now += 1.0
        assert self.now < 10_000, "the call has no deadline"


def asked_by(clock: Clock, ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The mean of a fleet of workers that are all alive, and answer what `ask` returns or raises."""
    monkeypatch.setattr("worker_service.chief.mean_gradient.time", clock)
    monkeypatch.setattr("worker_service.chief.mean_gradient.read_tensors", lambda checkpoint: WEIGHTS)
    mean = mean_of(free_addresses(3), [True] * 3)
    mean._holding = SimpleNamespace(record=object())  # type: ignore[assignment]
    mean._context.job = sample_job(deadlines={"stall_secs": 600})  # type: ignore[misc]
    operations: Any = mean._operations
    operations.pause, operations.await_held = clock.pause, lambda is_active: None
    monkeypatch.setattr(mean, "_asked", lambda *_: ask())
    return mean.mean(pb.TensorMessage(batches=1), {}, lambda: True)


def test_a_worker_that_is_alive_and_never_answers_ends_the_call_at_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def ask() -> None:
        raise LostPeerError("worker 1 is not held")

    with pytest.raises(UsageError, match=r"deadlines\.stall_secs = 600 s: worker 1 is not held; nothing has changed$"):
        asked_by(clock, ask, monkeypatch)
    assert 600 <= clock.now <= 610


def test_a_loss_after_a_long_computation_is_repaired_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(), list[float]()

    def ask() -> str:
        asked.append(clock.now)
        clock.now += 1000.0
        if len(asked) < 4:
            raise LostPeerError("worker 1 is away")
        return "the mean"

    assert asked_by(clock, ask, monkeypatch) == "the mean"
    assert len(asked) == 4
