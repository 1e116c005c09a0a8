"""When the chief may open a session with all workers, and what it says of those that are missing."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.addresses import LOOPBACK, Address, run_address
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError
from psfleet.tls.data_plane import DataPlane, Direct, WorkerRoute
from worker_service.fleet_state import States
from worker_service.in_graph.lent_workers import LentWorkers

CLOSED = f"{LOOPBACK}:1"
"""Nothing listens there."""
DIRECT = Direct(Address.parse(CLOSED), ())


@pytest.fixture
def address() -> Any:
    with socket.create_server((LOOPBACK, 0)) as server:
        yield f"{LOOPBACK}:{server.getsockname()[1]}"


def state(*workers: pb.WorkerState, generation: int = 1) -> pb.ShardState:
    is_reading = any(worker.reading_first_batch for worker in workers)
    return pb.ShardState(
        phase=pb.RUNNING, generation=generation, workers=list(workers), reading_first_batch=is_reading
    )  # fmt: skip


def worker(index: int, address: str, is_alive: bool = True, reading: bool = False) -> pb.WorkerState:
    return pb.WorkerState(index=index, address=address, is_alive=is_alive, reading_first_batch=reading)


def ready(
    replies: list[pb.ShardState | None],
    indices: Sequence[int] = (1, 2),
    plane: DataPlane = DIRECT,
) -> tuple[dict[int, str], list[bool]]:
    """What the client finds, and what it made of each reply of ps 0."""
    heartbeat: Any = SimpleNamespace(outcome=None, states=[None], detach=lambda: None)
    verdicts: list[bool] = []

    def until(what: str, done: Callable[[States], bool]) -> None:
        assert what == "workers 1, 2 to lend their devices"
        for reply in replies:
            heartbeat.states = [reply]
            verdicts.append(done(heartbeat.states))

    fleet: Any = SimpleNamespace(until=until)
    context: Any = SimpleNamespace(tasks=plane, run="digits")
    return LentWorkers(context, indices, heartbeat, fleet).ready(1), verdicts


def test_all_workers_must_be_alive_have_read_their_program_and_answer(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    chief, one, two = worker(0, CLOSED), worker(1, address), worker(2, address)
    found, verdicts = ready(
        [
            None,
            state(chief, one),
            state(chief, one, worker(2, address, is_alive=False)),
            state(chief, one, worker(2, address, reading=True)),
            state(chief, one, worker(2, CLOSED)),
            state(chief, one, two),
        ]
    )
    assert verdicts == [False, False, False, False, False, True]
    assert found == {1: address, 2: address}
    assert [text.partition(": ")[2] for text in caplog.messages] == [
        "there is no worker 2",
        "worker 2 starts, or reads a first batch",
        f"TensorFlow's port of worker 2 at {CLOSED} cannot be reached (Connection refused)",
    ]


def test_with_tls_sessions_use_the_ends_of_tunnels_and_the_tunnels_of_workers_must_answer(address: str) -> None:
    class Plane(Direct):
        def meet(self, run: str, worker: int, address: str) -> WorkerRoute:
            return WorkerRoute(run_address(run, worker), Address.parse(address))

    replies = [state(worker(1, address), worker(2, at)) for at in (CLOSED, address)]
    found, verdicts = ready(list(replies), plane=Plane(DIRECT.own, ()))
    assert verdicts == [False, True]
    assert found == {index: run_address("digits", index).data for index in (1, 2)}


def test_a_generation_that_is_over_ends_the_wait(address: str) -> None:
    with pytest.raises(LostPeerError, match="the run or its generation is over"):
        ready([state(worker(1, address), worker(2, address), generation=2)])


def test_two_clients_do_not_wait_for_each_others_first_batch(address: str) -> None:
    other_client, one, two = worker(3, address, reading=True), worker(1, address), worker(2, address)
    found, verdicts = ready([state(one, two, other_client)])
    assert verdicts == [True]
    assert found == {1: address, 2: address}


def test_a_client_of_its_own_worker_alone_waits_for_none() -> None:
    assert ready([], indices=()) == ({}, [])
