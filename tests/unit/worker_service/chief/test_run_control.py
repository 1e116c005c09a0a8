"""A handle that is frozen in the middle of a call holds up the calls of no other handle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

import psfleet
from psfleet.control import prompt_stream, run_control_pb2_grpc
from psfleet.control import run_control_pb2 as run_pb
from psfleet.control.credentials import channel
from psfleet.control.server import serving
from psfleet.control.tensor_stream import sending
from psfleet.errors import UsageError
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from worker_service.chief.operations import Operations
from worker_service.chief.run_control import ChiefServices, RunControlServicer

SECS = 30.0
"""Far more than any wait takes."""


class Weights:
    """Takes any weights."""

    def check_specs(self, given: object) -> None:
        """See `WeightSetter`."""


def call_of(name: str) -> run_pb.RunCall:
    return run_pb.RunCall(run="run", version=psfleet.__version__, call=name, owner=name)


@pytest.mark.parametrize("num_sent", [0, 1], ids=["nothing", "names and shapes"])
def test_a_sender_that_pauses_for_too_long_ends_its_call(monkeypatch: pytest.MonkeyPatch, num_sent: int) -> None:
    monkeypatch.setattr(prompt_stream, "PAUSE_SECS", 0.2)
    nothing: Any = None
    weights: Any = Weights()
    operations, thawed = Operations(nothing, nothing, nothing), threading.Event()
    servicer = RunControlServicer("run")
    servicer.bind(ChiefServices(operations, weights, nothing, nothing))

    def messages() -> Iterator[run_pb.TensorMessage]:
        for _, message in zip(range(num_sent), sending(call_of("first"), {"w": np.zeros(3)}), strict=False):
            yield message
        thawed.wait(SECS)

    [address] = free_addresses(1)
    with serving(address, run_control=servicer), channel(address.control, "worker", None) as to_chief:
        call = run_control_pb2_grpc.RunControlStub(to_chief).SetWeights.future(messages())
        try:
            assert call.exception(SECS).code() == grpc.StatusCode.CANCELLED
        finally:
            thawed.set()
        wait_until(lambda: is_free(operations), SECS, "the turn of another handle")


def is_free(operations: Operations) -> bool:
    """Whether another call would be made now."""
    try:
        with operations.turn(call_of("second"), "save"):
            return True
    except UsageError:
        return False
