"""A worker that lends its device: until when it waits, what ends it, and which workers there are none of."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.program_samples import sample_job

from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, DataStallError, ProgramError
from psfleet.job.job import Job, parse_job
from worker_service.fleet_state import States
from worker_service.in_graph.lending_worker import LendingWorker, is_part, lent_batches, peers
from worker_service.progress import TrainingProgress


def job(**update: Any) -> Job:
    """With two workers in one graph."""
    made = sample_job()
    fleet = made.fleet.model_copy(update={"workers": 2})
    return made.model_copy(update={"fleet": fleet, "update": made.update.model_copy(update=update)})


IN_GRAPH = job(replication="in_graph")
BATCHES: Any = SimpleNamespace(close=lambda: None)
"""Not read here."""


def lending(states: States, error: Exception | None = None) -> tuple[LendingWorker, TrainingProgress, list[bool]]:
    """A worker whose waits look at these states once, its progress, and whether they were over."""
    context: Any = SimpleNamespace(job=IN_GRAPH, fleet=SimpleNamespace(ps=(None,)), index=1)
    heartbeat: Any = SimpleNamespace(states=states, outcome=None, detach=lambda: None)
    progress, looks = TrainingProgress(), list[bool]()

    def check() -> None:
        if error is not None:
            raise error

    function: Any = SimpleNamespace(bind=lambda *_: None, check=check)
    nothing: Any = None
    worker = LendingWorker(context, nothing, BATCHES, heartbeat, progress, function)

    def until_step(step: int, what: str, is_over: Callable[[States], bool]) -> None:
        assert what == "the chief to make steps"
        looks.append(is_over(states))

    fleet: Any = SimpleNamespace(until_step=until_step)
    worker._fleet = fleet
    return worker, progress, looks


def shard(step: int, generation: int = 1, **fields: Any) -> pb.ShardState:
    return pb.ShardState(phase=pb.RUNNING, generation=generation, step=step, final_step=100, **fields)


def test_it_is_ready_once_it_reaches_the_chief_also_at_another_address() -> None:
    worker, progress, _ = lending([shard(7)])
    met: list[tuple[object, ...]] = []
    heartbeat: Any = worker._heartbeat
    heartbeat.outcome = pb.Outcome()
    progress.await_first_batch()
    context: Any = worker._context
    context.run, context.tasks = "digits", SimpleNamespace(meet=lambda *route: met.append(route))
    chief, moved = (pb.WorkerState(index=0, address=f"{host}:2300") for host in ("a", "b"))
    other = pb.WorkerState(index=1, address="c:2300")
    looks: list[bool] = []

    def until(what: str, done: Callable[[States], bool]) -> None:
        # With parts all workers are listed.
        looks.extend(done(states) for states in ([None], [shard(7)], [shard(7, workers=[other])]))
        assert progress.reading_first_batch
        looks.extend(done([shard(7, workers=[at, other])]) for at in (chief, chief, moved))

    fleet: Any = worker._fleet
    fleet.until = until
    worker.run()
    assert looks == [False, False, False, True, True, True]
    assert met == [("digits", 0, "a:2300"), ("digits", 0, "b:2300")]
    assert not progress.reading_first_batch


@pytest.mark.parametrize(("generation", "is_over"), [(1, False), (2, True)])
def test_it_waits_until_its_generation_is_over(generation: int, is_over: bool) -> None:
    worker, _, looks = lending([shard(7, generation)])
    assert not worker.train(1)
    assert looks == [is_over]


def test_in_a_held_run_it_is_at_the_step_at_which_the_run_is_held() -> None:
    worker, progress, _ = lending([shard(7, hold_at=7)])
    worker.train(1)
    assert progress.step == 7


def test_after_the_last_step_it_is_at_that_step() -> None:
    """The chief waits for that at the end of the run."""
    state = shard(100)
    state.phase = pb.COMPLETE
    worker, progress, _ = lending([state])
    worker.train(1)
    assert progress.step == 100


def test_an_error_of_its_data_ends_it() -> None:
    worker, _, _ = lending([shard(7)], ProgramError("disk 7 is gone"))
    with pytest.raises(ProgramError, match="disk 7 is gone"):
        worker.train(1)


@pytest.mark.parametrize(("step", "ends_run"), [(0, True), (7, False)])
def test_data_that_stall_end_the_run_unless_the_fleet_trains_on(step: int, ends_run: bool) -> None:
    worker, _, _ = lending([shard(step)], DataStallError("the data set", 5))
    with pytest.raises(DataStallError) as raised:
        worker.train(1)
    assert raised.value.ends_run is ends_run


def test_the_chief_and_workers_between_graphs_lend_nothing() -> None:
    assert lent_batches(IN_GRAPH, 0) is None
    assert lent_batches(job(), 1) is None
    assert lent_batches(IN_GRAPH, 1) is not None


def test_a_worker_that_the_graph_has_no_replica_for_is_refused() -> None:
    with pytest.raises(BadJobError, match="worker 2 was added to a fleet of 2 workers, expected no more"):
        lent_batches(IN_GRAPH, 2)


def test_with_parts_the_workers_behind_the_replicas_are_parts_and_lend_no_batches() -> None:
    for replication in ("between_graph", "in_graph"):
        fleet = {"workers": 4, "parts": 2}
        made = parse_job({**sample_job().model_dump(), "fleet": fleet, "update": {"replication": replication}})
        assert [is_part(made, index) for index in range(4)] == [False, False, True, True]
        assert [list(made.fleet.tasks_of(replica)) for replica in range(2)] == [[0, 2], [1, 3]]
        batches = [lent_batches(made, index) is not None for index in range(4)]
        assert batches == [False, replication == "in_graph", False, False]
        with pytest.raises(BadJobError, match="worker 4 was added to a fleet of 4 workers"):
            is_part(made, 4)


def test_a_worker_gets_tensors_of_its_replica_and_in_one_graph_of_the_chief() -> None:
    found = {}
    for replication in ("between_graph", "in_graph"):
        fleet = {"workers": 6, "parts": 3}
        made = parse_job({**sample_job().model_dump(), "fleet": fleet, "update": {"replication": replication}})
        found[replication] = [peers(made, index) for index in range(1, 6)]
    assert found["between_graph"] == [[3, 5], [0, 4], [1, 5], [0, 2], [1, 3]]
    assert found["in_graph"] == [[0, 3, 5], [0, 4], [0, 1, 5], [0, 2], [0, 1, 3]]


def test_a_part_is_ready_once_it_reaches_its_whole_replica() -> None:
    met: list[tuple[object, ...]] = []
    made = parse_job({**sample_job().model_dump(), "fleet": {"workers": 6, "parts": 3}})
    context: Any = SimpleNamespace(job=made, fleet=SimpleNamespace(ps=(None,)), index=3, run="digits")
    context.tasks = SimpleNamespace(meet=lambda *route: met.append(route))
    heartbeat: Any = SimpleNamespace(states=[], outcome=pb.Outcome())
    nothing: Any = None
    progress = TrainingProgress()
    worker = LendingWorker(context, nothing, BATCHES, heartbeat, progress, None)
    joined = [pb.WorkerState(index=index, address=f"host-{index}:2300") for index in range(6)]
    looks: list[bool] = []

    def until(what: str, done: Callable[[States], bool]) -> None:
        assert progress.reading_first_batch
        looks.extend(done(states) for states in ([shard(7, workers=joined[:5])], [shard(7, workers=joined)]))

    fleet: Any = SimpleNamespace(until=until)
    worker._fleet = fleet
    worker.run()
    assert (looks, progress.reading_first_batch) == ([False, True], False)
    assert met == [("digits", 1, "host-1:2300"), ("digits", 5, "host-5:2300")]


def test_a_part_is_at_the_step_of_the_fleet() -> None:
    context: Any = SimpleNamespace(job=parse_job({**sample_job().model_dump(), "fleet": {"workers": 2, "parts": 2}}))
    context.fleet, context.index = SimpleNamespace(ps=(None,)), 1
    heartbeat: Any = SimpleNamespace(states=[shard(7)], outcome=None, detach=lambda: None)
    nothing: Any = None
    progress = TrainingProgress()
    worker = LendingWorker(context, nothing, BATCHES, heartbeat, progress, None)
    worker._fleet = SimpleNamespace(until_step=lambda step, what, is_over: is_over(heartbeat.states))  # type: ignore[assignment]
    worker.train(1)
    assert (progress.step, progress.pushed) == (7, 0)
