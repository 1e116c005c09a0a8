"""Joins, losses, restarts, freezes, and late and repeated calls in any order: what must hold always holds.

`make test` tries 200 orders. With ARGS='--hypothesis-profile=interleavings' pytest tries ten thousand, in about a
minute: see tests/conftest.py.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.simulated_fleet import SimulatedFleet
from support.simulated_process import Process

from ps_service.relearning import RELEARN_SECS
from psfleet.errors import BadJobError

Event = tuple[Any, ...]
"""Name of a method of `Interleavings`, and its arguments."""
SHARDS = range(2)
"""Modulo the number of ps."""
WHICH = range(6)
"""Of the processes that can do what an event says, modulo their number."""
EVENTS: dict[int, list[Event]] = {
    7: [("wait", secs) for secs in (0.5, 1.0, 3.0, 6.0)],
    3: [("start", *event) for event in product((-1, -1, 0, 1), "abcdef", "112")],
    8: [("join", *event) for event in product(WHICH, (1, 2, 3))],
    10: [("beat", *event) for event in product(WHICH, SHARDS, (False, False, False, True))],
    1: [("configure", *event) for event in product(WHICH, SHARDS, (1, 2))],
    2: [("finish", *event) for event in product(WHICH, SHARDS, (0, 70))],
    6: [("disturb", *event) for event in product(WHICH, ("kill", "freeze", "freeze", "thaw", "thaw"))],
    4: [("restart_ps", shard) for shard in SHARDS],
    5: [("deliver_again", *event) for event in product(SHARDS, range(24))],
}
"""By weight. One choice for each event, and several in each step: hypothesis takes longer for both than a ps does."""
WEIGHTED = [event for weight, events in EVENTS.items() for event in events * (weight * 48 // len(events))]
EVENT = st.integers(0, len(WEIGHTED) - 1)
"""Position in `WEIGHTED`; a failing order prints the events' names and arguments."""
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("knows_restarts", [False, True])
@pytest.mark.parametrize("beats_first", [False, True])
def test_a_chief_that_was_frozen_does_not_end_the_run_of_another_after_ps_0_was_restarted(
    beats_first: bool, knows_restarts: bool
) -> None:
    """Too rare an order for the others."""
    fleet = SimulatedFleet(1, knows_restarts)
    for address in ("frozen", "chief"):
        fleet.start(0, address)
        fleet.call_join(fleet.processes[-1])
        fleet.call_join(fleet.processes[-1])
    frozen, chief = fleet.processes
    assert frozen.has_joined
    assert chief.has_joined
    fleet.restart_ps(0)
    if beats_first:
        fleet.beat(frozen, 0)
    fleet.finish(frozen, 0, 75)
    assert fleet.views[0].outcome is None
    fleet.beat(chief, 0)
    fleet.now += RELEARN_SECS
    fleet.finish(frozen, 0, 75)
    assert fleet.views[0].outcome is None
    fleet.finish(chief, 0, 0)
    assert fleet.views[0].outcome is not None


def test_a_restarted_ps_that_knows_only_the_old_chief_does_not_admit_another_program() -> None:
    """Too rare an order for the others, too: the worker that trains the old program reports only later."""
    fleet = SimulatedFleet(1, knows_restarts=True)
    for wants, address in ((0, "chief"), (-1, "worker")):
        fleet.start(wants, address, "1")
        fleet.call_join(fleet.processes[-1])
        fleet.call_join(fleet.processes[-1])
    chief, worker = fleet.processes
    fleet.start(0, "other chief", "2")
    fleet.restart_ps(0)
    fleet.beat(chief, 0, leaving=True)
    other_chief = fleet.processes[-1]
    fleet.call_join(other_chief)
    fleet.call_join(other_chief)
    assert other_chief.member is None
    fleet.beat(worker, 0)
    assert not worker.is_refused


class Interleavings(RuleBasedStateMachine):
    """One order of events."""

    @initialize(num_ps=st.integers(1, 2), knows_restarts=st.booleans())
    def begin(self, num_ps: int, knows_restarts: bool) -> None:
        self.fleet = SimulatedFleet(num_ps, knows_restarts)
        for wants, address in ((0, "chief"), (-1, "a"), (-1, "b")):
            self.fleet.start(wants, address)

    @rule(events=st.tuples(*[EVENT] * 5))
    def happen(self, events: tuple[int, ...]) -> None:
        for name, *arguments in map(WEIGHTED.__getitem__, events):
            note(f"{name}{tuple(arguments)}")
            getattr(self, name)(*arguments)

    def start(self, wants: int, address: str, program: str) -> None:
        self.fleet.start(wants, address, program)

    def join(self, which: int, calls: int) -> None:
        process = self.pick(which, joined=False)
        for _ in range(calls):
            if process is not None and process.acts and not process.has_joined:
                try:
                    self.fleet.call_join(process)
                except BadJobError:
                    process.is_dead = True

    def beat(self, which: int, shard: int, leaving: bool) -> None:
        process = self.pick(which, joined=True)
        if process is not None:
            self.fleet.beat(process, shard, leaving)

    def configure(self, which: int, shard: int, generation: int) -> None:
        process = self.pick(which, joined=True)
        if process is not None:
            self.fleet.configure(process, shard, generation)

    def finish(self, which: int, shard: int, exit_code: int) -> None:
        process = self.pick(which, joined=True)
        if process is not None:
            self.fleet.finish(process, shard, exit_code)

    def disturb(self, which: int, how: str) -> None:
        process = self.fleet.processes[which % len(self.fleet.processes)]
        if how == "kill":
            process.is_dead = True
        else:
            process.is_frozen = how == "freeze"

    def restart_ps(self, shard: int) -> None:
        self.fleet.restart_ps(shard)

    def deliver_again(self, shard: int, which: int) -> None:
        self.fleet.deliver_again(shard, which)

    def wait(self, secs: float) -> None:
        self.fleet.now += secs

    def pick(self, which: int, *, joined: bool) -> Process | None:
        able = [process for process in self.fleet.processes if process.acts and process.has_joined == joined]
        return able[which % len(able)] if able else None

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.settle()
            self.fleet.end()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=max(200, settings.default.max_examples if settings.default else 0),
    stateful_step_count=3,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
