"""Two jobs on one fleet of parameter servers at the same time: neither sees the other, not even its reset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import Psfleet
from support.local_fleet import Fleet, training
from support.numpy_optimizers import rule
from support.programs import exact_graph_program
from support.replay import Weights, perceptron_gradient, replay
from support.service_process import END_SECS, START_SECS, Service, running

from psfleet.checkpoint.tensors import read_tensors
from psfleet.control import control_pb2 as pb
from psfleet.polling import wait_until
from psfleet.report.schema import Report

NUM_PS = 2
STEP_SECS = 0.07
STEPS = 100
"""More than are made until one job is reset, at `STEP_SECS` each."""
BATCH_SIZE = 4
MAX_DIFFERENCE = 1e-5
STEPS_AFTER_RESET = 10
"""How far the other job must get after one was reset, to show that it was not disturbed."""


@pytest.fixture(scope="module")
def ps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """Parameter servers that serve any run."""
    folder = tmp_path_factory.mktemp("ps")
    with ExitStack() as stack:
        services = [stack.enter_context(running("ps", folder)) for _ in range(NUM_PS)]
        yield [service.serving() for service in services]


@dataclass(frozen=True)
class TrainedJob:
    """What one of two jobs has of its own; the names of its worker and of its tensors are those of the other."""

    name: str
    learning_rate: float

    def on(self, ps: Sequence[Service], folder: Path) -> AbstractContextManager[Fleet]:
        """Starts `psfleet train` on these parameter servers, in a folder of its own."""
        own = folder / self.name
        own.mkdir()
        return training(
            own,
            "--set",
            f"name={self.name}",
            "--set",
            f"fleet.ps_addresses={json.dumps([service.address.data for service in ps])}",
            step_secs=STEP_SECS,
            programs=["paced_exact_program", "exact_graph_program", "exact_keras_program"],
            options={"front_end": "graph", "batch_size": BATCH_SIZE},
            fleet={"ps": NUM_PS, "workers": 1},
            optimizer=self.optimizer(),
            train={"steps": STEPS, "batch_size": BATCH_SIZE},
            checkpoint={"every_steps": 10},
        )

    def optimizer(self) -> dict[str, Any]:
        """The section of the job."""
        return {"name": "momentum", "learning_rate": self.learning_rate}

    def alone(self) -> Weights:
        """All tensors after the steps of one process, without another job."""
        return replay(
            exact_graph_program.initial_weights() | exact_graph_program.initial_state(),
            perceptron_gradient,
            exact_graph_program.data(),
            workers=1,
            batch_size=BATCH_SIZE,
            steps=STEPS,
            rule=lambda: rule(self.optimizer()),
            rate=lambda step: self.learning_rate,
        )

    def check_weights(self, fleet: Fleet) -> None:
        """Those of the last checkpoint are as if the job had been alone."""
        found, expected = read_tensors(fleet.checkpoint()), self.alone()
        assert found.keys() == expected.keys()
        differences = {name: float(np.abs(found[name] - value).max()) for name, value in expected.items()}
        assert max(differences.values()) <= MAX_DIFFERENCE, f"{self.name}: {differences}"


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


def reset(psfleet: Psfleet, ps: Sequence[Service], run: str) -> list[str]:
    """`psfleet reset`; what it prints for each ps."""
    addresses = [part for service in ps for part in ("--ps", service.address.data)]
    said = psfleet("reset", run, *addresses)
    assert said.code == 0, said
    return said.out.splitlines()


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


def check_alone(fleet: Fleet, report: Report) -> None:
    """A run that lost nothing and waited for nobody: its worker gave one gradient to each step."""
    assert (report.restarts, report.events, report.generation) == (0, [], 1)
    assert (report.gradients.pushed, report.gradients.used) == (fleet.steps, fleet.steps)
    assert fleet.entries("lost_peer") == []


@pytest.mark.extended
def test_two_jobs_at_once_train_as_each_would_alone_though_one_is_reset(
    ps: list[Service], psfleet_here: Psfleet, tmp_path: Path
) -> None:
    """The one that was reset resumes from its last checkpoint and reaches the same weights; the other is unaffected."""
    other, victim = TrainedJob("other", learning_rate=0.05), TrainedJob("victim", learning_rate=0.02)
    with other.on(ps, tmp_path) as fleet_of_other, victim.on(ps, tmp_path) as fleet_of_victim:
        runs = train_together(ps, fleet_of_victim, fleet_of_other)
        with undisturbed(ps, fleet_of_other, runs[1]):
            first, *others = reset(psfleet_here, ps, runs[0])
            assert first == f"{ps[0].address.data}: deleted run {runs[0]}"
            # By then the chief may have noticed, and have the others between two shards.
            assert [line for line in others if not line.endswith(f" run {runs[0]}")] == []
        fleet_of_victim.gates.hurry()
        fleet_of_other.gates.hurry()
        check_alone(fleet_of_other, fleet_of_other.done())
        report = fleet_of_victim.done()
    assert report.generation >= 2
    # The chief may see the first ps without its shard before the second is reset, and then has both start again.
    assert {(event.role, event.kind, event.cause) for event in report.events} == {
        ("ps", "restarted", "lost shard state (restarted)")
    }
    other.check_weights(fleet_of_other)
    victim.check_weights(fleet_of_victim)
    assert [service.process.poll() for service in ps] == [None] * NUM_PS
    assert [service.failures() for service in ps] == [[]] * NUM_PS
    for run in runs:
        wait_until(partial(are_empty, ps, run), END_SECS, f"the ps to drop {run}, which is over")
        assert reset(psfleet_here, ps, run) == [f"{service.address.data}: no state of run {run}" for service in ps]
