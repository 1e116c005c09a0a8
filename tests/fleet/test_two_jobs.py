"""Two jobs on one fleet of parameter servers at the same time: neither sees the other, not even its reset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.commands import psfleet
from support.local_fleet import Fleet, training
from support.service_process import END_SECS, START_SECS, Service, running

from psfleet.checkpoint.tensors import read_tensors
from psfleet.control import control_pb2 as pb
from psfleet.polling import wait_until
from psfleet.report.schema import Report

NUM_PS = 2
STEP_SECS = 0.02
STEPS = 60
MANY_STEPS = 400
"""More than are made while another job is reset, at `STEP_SECS` each."""
STEPS_AFTER_RESET = 20
"""How far the other job must get after one was reset, to show that it was not disturbed."""


@pytest.fixture(scope="module")
def ps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """Parameter servers that serve any run."""
    folder = tmp_path_factory.mktemp("ps")
    with ExitStack() as stack:
        services = [stack.enter_context(running("ps", folder)) for _ in range(NUM_PS)]
        yield [service.serving() for service in services]


def on(
    ps: Sequence[Service], folder: Path, workers: int, seed: int, steps: int = STEPS
) -> AbstractContextManager[Fleet]:
    """Starts `psfleet train` of a job on these parameter servers, in a folder of its own."""
    folder.mkdir()
    return training(
        folder,
        "--set",
        f"name={folder.name}",
        "--set",
        f"fleet.ps_addresses={json.dumps([service.address.data for service in ps])}",
        step_secs=STEP_SECS,
        fleet={"ps": NUM_PS, "workers": workers},
        train={"steps": steps, "batch_size": 1, "shuffle": 0, "seed": seed},
        checkpoint={"every_steps": 10},
    )


def train_together(ps: Sequence[Service], *fleets: Fleet) -> list[str]:
    """Holds the data of every job back until the ps have the shards of all; the runs, by the names that they have."""
    for fleet in fleets:
        fleet.gates.hold(0)
    runs = [run_of(fleet) for fleet in fleets]
    for fleet, run in zip(fleets, runs, strict=True):
        fleet.wait_for(partial(are_running, ps, run), START_SECS, f"every ps to have a shard of {run}")
    for fleet in fleets:
        fleet.gates.release(0)
    for fleet in fleets:
        fleet.wait_for_step(1)
    return runs


def run_of(fleet: Fleet) -> str:
    """The name of a run that has just been started, as its chief logs it."""
    return fleet.wait_for(fleet.run, START_SECS, "the name of the run")


def states(ps: Sequence[Service], run: str) -> list[pb.ShardState]:
    """What each ps has of a run."""
    found = []
    for service in ps:
        with service.client(run) as client:
            found.append(client.describe())
    return found


def are_running(ps: Sequence[Service], run: str) -> bool:
    """Whether every ps trains a shard of a run."""
    return all(state.phase == pb.RUNNING for state in states(ps, run))


def are_empty(ps: Sequence[Service], run: str) -> bool:
    """Whether no ps holds anything of a run."""
    return all(state.phase == pb.EMPTY for state in states(ps, run))


def weights(fleet: Fleet) -> dict[str, np.ndarray]:
    """Of the last checkpoint."""
    return read_tensors(fleet.checkpoint())


def reset(ps: Sequence[Service], run: str) -> list[str]:
    """`psfleet reset`; what it prints for each ps."""
    addresses = [part for service in ps for part in ("--ps", service.address.data)]
    said = psfleet(Path.cwd(), "reset", run, *addresses, timeout_secs=START_SECS)
    assert said.returncode == 0, said
    return said.stdout.splitlines()


@contextmanager
def undisturbed(ps: Sequence[Service], fleet: Fleet, run: str) -> Iterator[None]:
    """Checks that a run trains on during the block: the same generation, counters that only grow, further steps."""
    before = states(ps, run)
    yield
    fleet.wait_for(
        lambda: all(
            state.step >= old.step + STEPS_AFTER_RESET for state, old in zip(states(ps, run), before, strict=True)
        ),
        START_SECS,
        f"{STEPS_AFTER_RESET} more steps of {run} on every ps",
    )
    for state, old in zip(states(ps, run), before, strict=True):
        assert (state.phase, state.generation, state.layout_digest) == (pb.RUNNING, 1, old.layout_digest)
        assert all(now >= then for now, then in zip(state.pushed, old.pushed, strict=True))
        assert [worker.joins for worker in state.workers] == [worker.joins for worker in old.workers]


def check_alone(fleet: Fleet, report: Report, workers: int) -> None:
    """A run that lost nothing and waited for nobody: each worker gave one gradient to each step."""
    assert (report.restarts, report.events, report.generation) == (0, [], 1)
    assert (report.gradients.pushed, report.gradients.used) == (workers * fleet.steps, workers * fleet.steps)
    assert [entry for index in range(workers) for entry in fleet.entries("lost_peer", index=index)] == []


def same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    """Whether weights are equal, up to the order in which two gradients are added."""
    assert ours.keys() == theirs.keys()
    return all(np.allclose(ours[name], theirs[name], rtol=0, atol=1e-6) for name in ours)


def test_two_jobs_at_once_train_as_each_would_alone(ps: list[Service], tmp_path: Path) -> None:
    """Same tensor names, same ps, same time; other seeds and another number of workers."""
    with on(ps, tmp_path / "first", 2, seed=1) as first, on(ps, tmp_path / "second", 1, seed=2) as second:
        runs = train_together(ps, first, second)
        reports = first.done(), second.done()
    check_alone(first, reports[0], workers=2)
    check_alone(second, reports[1], workers=1)
    assert not same(weights(first), weights(second))
    with on(ps, tmp_path / "again", 1, seed=2) as again:
        again.gates.hurry()
        again.done()
    assert same(weights(again), weights(second))
    assert [service.process.poll() for service in ps] == [None] * NUM_PS
    assert [service.failures() for service in ps] == [[]] * NUM_PS
    for run in (*runs, again.report().run):
        wait_until(partial(are_empty, ps, run), END_SECS, f"the ps to drop {run}, which is over")
        assert reset(ps, run) == [f"{service.address.data}: no state of run {run}" for service in ps]


def test_resetting_one_job_while_both_train_leaves_the_other_alone(ps: list[Service], tmp_path: Path) -> None:
    """The one that was reset resumes from its last checkpoint and reaches the same weights; the other is unaffected."""
    with (
        on(ps, tmp_path / "victim", 1, seed=3, steps=MANY_STEPS) as victim,
        on(ps, tmp_path / "other", 1, seed=3, steps=MANY_STEPS) as other,
    ):
        run, run_of_other = train_together(ps, victim, other)
        with undisturbed(ps, other, run_of_other):
            first, *others = reset(ps, run)
            assert first == f"{ps[0].address.data}: deleted run {run}"
            # By then the chief may have noticed, and have the others between two shards.
            assert [line for line in others if not line.endswith(f" run {run}")] == []
        victim.gates.hurry()
        other.gates.hurry()
        check_alone(other, other.done(), workers=1)
        report = victim.done()
    assert report.generation >= 2
    # The chief may see the first ps without its shard before the second is reset, and then has both start again.
    assert {(event.role, event.kind, event.cause) for event in report.events} == {
        ("ps", "restarted", "lost shard state (restarted)")
    }
    assert same(weights(victim), weights(other))
    assert [service.process.poll() for service in ps] == [None] * NUM_PS
    assert [service.failures() for service in ps] == [[]] * NUM_PS
