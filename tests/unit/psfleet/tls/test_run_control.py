"""Which roles may call a chief and a worker, with mutual TLS."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

import psfleet
from psfleet.addresses import Address
from psfleet.control import run_control_pb2 as pb
from psfleet.control import run_control_pb2_grpc
from psfleet.control.credentials import channel
from psfleet.control.server import serving
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import LostPeerError
from psfleet.layout import TensorSpec
from psfleet.polling import run_within
from psfleet.processes.ports import free_addresses
from psfleet.tls import certificates
from psfleet.tls.identity import Identity
from worker_service.chief.mean_gradient import MeanGradient
from worker_service.chief.run_control import RunControlServicer
from worker_service.own_gradient import WorkerControlServicer

CALL_SECS = 10.0
REFUSED, STARTS = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("role", "run", "own"), [("client", STARTS, REFUSED), ("worker", STARTS, STARTS), ("ps", REFUSED, REFUSED)]
)
def test_handles_call_the_chief_and_workers_each_other(
    tmp_path: Path, role: str, run: grpc.StatusCode, own: grpc.StatusCode
) -> None:
    certificates.make(tmp_path)
    [address] = free_addresses(1)
    caller = pb.RunCall(run="run", version=psfleet.__version__)
    with (
        serving(
            address,
            identity=Identity(tmp_path / "worker"),
            run_control=RunControlServicer("run"),
            worker_control=WorkerControlServicer("run"),
        ),
        channel(address.control, "worker", Identity(tmp_path / role)) as to_worker,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            run_control_pb2_grpc.RunControlStub(to_worker).Look(caller, timeout=CALL_SECS)
        assert caught.value.code() == run
        messages = [pb.TensorMessage(caller=caller), pb.TensorMessage(sha256="0")]
        with pytest.raises(grpc.RpcError) as caught:
            list(run_control_pb2_grpc.WorkerControlStub(to_worker).OwnGradient(iter(messages), timeout=CALL_SECS))
        assert caught.value.code() == own


WEIGHTS = {"w": np.ones(3, np.float32)}


class OneGradient(run_control_pb2_grpc.WorkerControlServicer):
    """A worker whose gradient is what it was sent.

    Attributes:
        freezes: Called before it answers, with a function that waits until its caller has gone.
    """

    freezes: Callable[[Callable[[], object]], object] = staticmethod(lambda wait: None)

    def OwnGradient(self, request_iterator: Any, context: Any) -> Any:
        """See run_control.proto."""
        head, tensors = receiving(request_iterator, lambda specs: None)
        has_gone = threading.Event()
        context.add_callback(has_gone.set)
        self.freezes(lambda: has_gone.wait(2 * CALL_SECS))
        yield from sending(head.caller, tensors, loss=0.5)


def mean_of(worker: Any, identity: Identity, address: Address) -> MeanGradient:
    """The chief's mean over one worker, as ps 0 knows it."""
    states = [SimpleNamespace(workers=[worker])]
    job = SimpleNamespace(fleet=SimpleNamespace(workers=1))
    worker.address = address.data
    context = SimpleNamespace(identity=identity, job=job, fleet=SimpleNamespace(describe=lambda: states))
    operations: Any = SimpleNamespace(
        context=context, states=states, check_active=lambda is_active: None, require_running=lambda what: None
    )
    mean = MeanGradient(operations, holding=None)  # type: ignore[arg-type]
    mean._trained = lambda: {"w": TensorSpec("w", (3,), "float32")}  # type: ignore[method-assign]
    return mean


def test_a_chief_asks_the_workers_of_a_fleet_with_tls_for_their_gradients(tmp_path: Path) -> None:
    certificates.make(tmp_path)
    [address] = free_addresses(1)
    identity, worker = Identity(tmp_path / "worker"), SimpleNamespace(index=0, is_alive=True)
    with serving(address, identity=identity, worker_control=OneGradient()):
        mean = mean_of(worker, identity, address)
        loss, gradient = mean._asked([address], pb.TensorMessage(batches=1), WEIGHTS, lambda: True)
    assert loss == 0.5
    np.testing.assert_array_equal(gradient["w"], WEIGHTS["w"])


def test_a_worker_that_freezes_while_it_is_asked_for_its_gradient_is_lost(tmp_path: Path) -> None:
    certificates.make(tmp_path)
    [address] = free_addresses(1)
    identity, worker, frozen = Identity(tmp_path / "worker"), SimpleNamespace(index=0, is_alive=True), OneGradient()

    def freeze(wait: Callable[[], object]) -> None:
        worker.is_alive = False
        wait()

    frozen.freezes = freeze  # type: ignore[method-assign]
    with serving(address, identity=identity, worker_control=frozen):
        mean = mean_of(worker, identity, address)
        with pytest.raises(LostPeerError, match=rf"the worker at {address.data} is away"):
            run_within(CALL_SECS, lambda: mean._asked([address], pb.TensorMessage(batches=1), WEIGHTS, lambda: True))
