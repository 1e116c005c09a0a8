"""What the caller of a chief, or of another worker, learns from the status of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psfleet.control import run_control_pb2 as run_pb
from psfleet.control import run_control_pb2_grpc
from psfleet.control.run_client import RunClient
from psfleet.control.server import serving
from psfleet.errors import BUG, PsfleetError
from psfleet.processes.ports import free_addresses

CALL_SECS = 20.0


class Broken(run_control_pb2_grpc.RunControlServicer):
    """A chief with a bug."""

    def Save(self, request: Any, context: Any) -> Any:
        """See run_control.proto."""
        raise ValueError("a bug")

    def Gradient(self, request_iterator: Any, context: Any) -> Any:
        """See run_control.proto."""
        yield from ()
        raise ValueError("a bug")


@pytest.mark.parametrize(
    ("method", "request_of", "consume"),
    [
        pytest.param("Save", run_pb.RunCall, None, id="one answer"),
        pytest.param("Gradient", lambda: iter([run_pb.TensorMessage()]), list, id="a stream"),
    ],
)
def test_a_bug_of_the_chief_is_an_error_and_not_a_reason_to_call_again(
    method: str, request_of: Callable[[], Any], consume: Callable[[Any], Any] | None
) -> None:
    [address] = free_addresses(1)
    with serving(address, run_control=Broken()):
        client = RunClient(address.control)
        with pytest.raises(PsfleetError, match="a bug") as caught:
            client.call(method, request_of, timeout_secs=CALL_SECS, consume=consume)
        client.close()
    assert caught.value.exit_code == BUG
