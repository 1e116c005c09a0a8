"""How async mode applies a gradient by its staleness, in a session of this process on a real shard's variables."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.graph_fleet import STEP_SECS, graph_fleet

from ps_service.updates.asynchronous import AsyncUpdates, StalePolicy
from psfleet.job.update import Stale
from psfleet.layout import Layout, TensorSpec
from psfleet.polling import wait_until
from psfleet.tf import STALENESS_BUCKETS, ShardVariables
from psfleet.tf.own_session import OwnSession

SIZE = 16
MAX_WORKERS = 3
TARGET = 100
RATE = 0.5
ROUNDS = 20
TOKEN_SECS = 5.0


def policy(stale: Stale, staleness: int) -> dict[str, float]:
    """Whether a gradient of that staleness is used (0 or 1), and the factors of rate and gradient."""
    with tf.Graph().as_default() as graph:
        made = StalePolicy(stale, tf.constant(staleness, tf.int64))
        tensors = {field: getattr(made, field) for field in ("is_used", "rate_factor", "gradient_factor")}
    with v1.Session(graph=graph) as session:
        return {field: float(value) for field, value in session.run(tensors).items()}


def outcome(is_used: int = 1, rate_factor: float = 1.0, gradient_factor: float = 1.0) -> object:
    """What `policy` is expected to return, nearly."""
    return pytest.approx({"is_used": is_used, "rate_factor": rate_factor, "gradient_factor": gradient_factor})


@pytest.mark.parametrize("staleness", [0, 1, 9, 1000])
def test_apply_takes_every_gradient_as_it_is(staleness: int) -> None:
    assert policy(Stale(policy="apply", bound=1), staleness) == outcome()


@pytest.mark.parametrize("staleness", [0, 1, 3, 99])
def test_lower_rate_divides_the_rate_by_one_more_than_the_staleness_whatever_the_bound(staleness: int) -> None:
    assert policy(Stale(policy="lower_rate", bound=2), staleness) == outcome(rate_factor=1 / (1 + staleness))


@pytest.mark.parametrize(("staleness", "factor"), [(0, 1.0), (3, 1.0), (4, 1.0), (5, 0.8), (16, 0.25), (400, 0.01)])
def test_scale_shrinks_a_gradient_above_the_bound_to_bound_over_staleness(staleness: int, factor: float) -> None:
    assert policy(Stale(policy="scale", bound=4), staleness) == outcome(gradient_factor=factor)


@pytest.mark.parametrize(
    ("bound", "staleness", "is_used"),
    [(0, 0, 1), (0, 1, 0), (4, 4, 1), (4, 5, 0), (4, 500, 0)],
)
def test_drop_leaves_out_a_gradient_above_the_bound(bound: int, staleness: int, is_used: int) -> None:
    assert policy(Stale(policy="drop", bound=bound), staleness) == outcome(is_used=is_used)


class Shard:
    """A shard of one bucket of ones, in async mode with plain descent at RATE."""

    def __init__(self, stale: Stale) -> None:
        layout = Layout.plan([TensorSpec("w", (SIZE,))], [], [], num_ps=1, bucket_bytes=4096)
        v1.disable_control_flow_v2()
        with tf.Graph().as_default() as graph:
            self.variables = ShardVariables(layout, 0, MAX_WORKERS, "run/1", device="")
            self.updates = AsyncUpdates(
                self.variables, lambda factor, _: v1.train.GradientDescentOptimizer(RATE * factor), stale, lambda _: 0.5
            )
            variables = self.variables
            initializer = variables.zeros()
            ready = [
                variables.final_step.assign(TARGET),
                variables.buckets[0].assign(tf.ones(SIZE)),
                variables.last_number.assign([-1] * MAX_WORKERS),
            ]
            self._gradient = [v1.placeholder(tf.float32, [SIZE]), v1.placeholder(tf.int64, [2])]
            self._worker = v1.placeholder(tf.int32, [])
            with tf.control_dependencies([variables.registered.add_at([self._worker], tf.constant(1, tf.int64))]):
                self._push = variables.gradients.enqueue([*self._gradient, self._worker])
            self._global_step = v1.placeholder(tf.int64, [])
            self._set_global_step = variables.global_step.assign(self._global_step)
            read = ("global_step", "last_number", "used", "staleness")
            self._reads = {name: getattr(variables, name).read_value() for name in read}
            self._weights = variables.buckets[0].read_value()
            self._num_tokens = [queue.size() for queue in variables.tokens.queues]
            self._take_token = [queue.dequeue() for queue in variables.tokens.queues]
        self._numbers = itertools.count()
        self.session = OwnSession(graph=graph)
        self.session.run(initializer)
        self.session.run(ready)
        self.updates.start(self.session)

    def send(self, local_step: int, worker: int, number: int | None = None) -> None:
        """Sends a gradient of ones with a local step to the shard, by default with the next number.

        Its wait has registered before, so that the number of tokens does not depend on which of both is faster.
        """
        number = next(self._numbers) if number is None else number
        values = dict(zip(self._gradient, [np.ones(SIZE, np.float32), [local_step, number]], strict=True))
        self.session.run(self._push, {**values, self._worker: worker})

    def push(self, global_step: int, local_step: int, worker: int = 0, number: int | None = None) -> int:
        """A shard at `global_step` processes a gradient; returns its global step afterwards."""
        self.session.run(self._set_global_step, {self._global_step: global_step})
        self.send(local_step, worker, number)
        return self.updates.advance(hold=False)

    def weight(self) -> float:
        """All weights are equal: one of them."""
        return float(self.session.run(self._weights)[0])

    def read(self, name: str) -> Any:
        """A variable of the shard."""
        return self.session.run(self._reads[name])

    def tokens(self) -> list[int]:
        """The number of tokens in each worker's queue."""
        waiting: list[int] = [int(size) for size in self.session.run(self._num_tokens)]
        return waiting

    def take_token(self, worker: int) -> None:
        """Waits for the token, as a worker does after its push and its registration."""
        self.session.run(self._take_token[worker])


@pytest.fixture
def shard(request: pytest.FixtureRequest) -> Iterator[Shard]:
    made = Shard(request.param)
    with made.session:
        yield made


@pytest.mark.parametrize(
    ("shard", "moved"),
    [
        (Stale(policy="apply"), RATE),
        (Stale(policy="lower_rate"), RATE / 6),
        (Stale(policy="scale", bound=2), RATE * 2 / 5),
        (Stale(policy="drop", bound=5), RATE),
        (Stale(policy="drop", bound=4), 0.0),
    ],
    indirect=["shard"],
    ids=["apply", "lower-rate", "scale", "drop-at-the-bound", "drop-above-it"],
)
def test_a_gradient_five_updates_late_moves_the_weights_as_the_policy_says(shard: Shard, moved: float) -> None:
    after = shard.push(global_step=12, local_step=7, worker=1)
    assert shard.weight() == pytest.approx(1 - moved)
    assert after == shard.read("global_step") == 12 + (moved > 0)
    assert shard.read("used").tolist() == [0, int(moved > 0), 0]
    assert np.argwhere(shard.read("staleness")).tolist() == [[1, 5]]
    assert shard.tokens() == [0, 1, 0], "the worker that pushed gets a token, whether its gradient was used or dropped"


@pytest.mark.parametrize("shard", [Stale()], indirect=True)
def test_a_gradient_after_the_final_step_is_dropped_and_its_worker_gets_a_token(shard: Shard) -> None:
    assert shard.push(global_step=TARGET, local_step=TARGET - 1, worker=2) == TARGET
    assert shard.weight() == 1
    assert shard.read("used").tolist() == [0, 0, 0]
    assert shard.tokens() == [0, 0, 1]


@pytest.mark.parametrize("shard", [Stale()], indirect=True)
def test_a_number_of_a_worker_is_applied_once_whatever_its_processes_repeat(shard: Shard) -> None:
    """A process that was thought dead sends its number 7 after its successor has sent 7 and 8."""
    for after, (worker, number) in enumerate([(0, 7), (1, 7), (0, 8)], 1):
        assert shard.push(after - 1, after - 1, worker, number) == after
        shard.take_token(worker)
    for worker, number in [(0, 7), (0, 8), (1, 7), (1, 0)]:
        assert shard.push(3, 3, worker, number) == 3
        assert shard.tokens()[worker] == 1, "a worker whose gradient was dropped waits for a token, too"
        shard.take_token(worker)
    assert shard.weight() == 1 - 3 * RATE
    assert shard.read("used").tolist() == [2, 1, 0]
    assert shard.read("last_number").tolist() == [8, 7, -1]
    assert shard.read("staleness").sum() == 7


@pytest.mark.parametrize("shard", [Stale()], indirect=True)
def test_staleness_beyond_the_histogram_counts_in_its_last_entry(shard: Shard) -> None:
    for late in (STALENESS_BUCKETS - 2, STALENESS_BUCKETS - 1, STALENESS_BUCKETS, 90):
        shard.push(global_step=95, local_step=95 - late)
    assert shard.read("staleness")[0, -2:].tolist() == [1, 3]
    assert shard.read("staleness").sum() == 4


@pytest.mark.parametrize("shard", [Stale()], indirect=True)
def test_a_worker_that_takes_its_token_late_gets_one_for_its_next_gradient_too(shard: Shard) -> None:
    """The ps waits for the next gradient meanwhile: what it saw of the queue before is no longer true."""

    def at_worker_0(tokens: list[int]) -> bool:
        return tokens[0] == 1

    def serve() -> None:
        with suppress(tf.errors.CancelledError):
            for _ in range(ROUNDS):
                shard.updates.advance(hold=False)

    ps = threading.Thread(target=serve)
    ps.start()
    try:
        for number in range(ROUNDS):
            shard.send(local_step=number, worker=0)
            wait_until(shard.tokens, TOKEN_SECS, f"the token for gradient {number}", done=at_worker_0, poll_secs=0.01)
            shard.take_token(0)
    finally:
        shard.session.close()
        ps.join()


@pytest.mark.parametrize("shard", [Stale()], indirect=True)
def test_each_wait_that_has_registered_gets_a_token_and_no_other_one_does(shard: Shard) -> None:
    """Those of a worker that was thought dead and of its successor: neither can take that of the other."""
    for worker in (0, 0, 1):
        shard.send(local_step=0, worker=worker, number=7)
    for tokens in ([2, 0, 0], [2, 0, 0], [2, 1, 0]):
        shard.updates.advance(hold=False)
        assert shard.tokens() == tokens


def test_each_shard_counts_staleness_from_the_global_step_that_it_had_when_it_was_read() -> None:
    """One shard is ahead of the other, because a worker died between its pushes: a fresh gradient is fresh on both."""
    with graph_fleet(num_ps=2, update={"mode": "async"}, fleet={"workers": 2}) as fleet:
        with fleet.worker(0) as dying:
            fleet.die_between_pushes(dying, 1, 0, number=0)
        fleet.advance(0)
        with fleet.worker(1) as worker:
            assert worker.start.shards[:, 0].tolist() == [1, 0]
            for number in (1, 2):
                step = worker.push(1, 0, number)
                fleet.advance()
                assert step.result(STEP_SECS)[1][:, 0].tolist() == [1 + number, number]
        for shard in fleet.shards:
            assert shard.counters().staleness[1, :3].tolist() == [2, 0, 0]


def test_a_gradient_that_a_killed_worker_had_pushed_is_not_applied_again() -> None:
    """One shard has it, and the other has not; the successor reads that from both, and repeats it for the other."""
    with graph_fleet(num_ps=2, update={"mode": "async"}, fleet={"workers": 1}) as fleet:
        with fleet.worker(0) as killed:
            step = killed.push(1, 0, number=4)
            fleet.advance()
            step.result(STEP_SECS)
            fleet.die_between_pushes(killed, 1, 1, number=5)
        fleet.advance(0)
        with fleet.worker(0) as successor:
            assert successor.start.shards[:, 0].tolist() == [2, 1]
            assert successor.start.numbers.tolist() == [5, 4]
            repeat = successor.push(1, 1, number=5)
            fleet.advance()
            assert repeat.result(STEP_SECS)[1][:, 0].tolist() == [2, 2]
        counters = [shard.counters() for shard in fleet.shards]
        assert [counter.used[0] for counter in counters] == [2, 2]
        assert [counter.pushed[0] for counter in counters] == [3, 2]


def test_a_killed_workers_gradient_that_still_waits_in_the_queue_is_applied_once() -> None:
    with graph_fleet(update={"mode": "async"}, fleet={"workers": 1}) as fleet:
        with fleet.worker(0) as killed:
            killed.push(1, 0, number=0)
            fleet.wait_for_size("gradients", 1)
            killed.session.close()
        with fleet.worker(0) as successor:
            assert successor.start.numbers.tolist() == [-1]
            repeat = successor.push(1, 0, number=0)
            fleet.wait_for_size("gradients", 2)
            fleet.advance()
            fleet.advance()
            repeat.result(STEP_SECS)
        assert fleet.weights() == [-1, -1]
        counters = fleet.shards[0].counters()
        assert (counters.pushed[0], counters.used[0]) == (2, 1)


def test_a_token_that_a_closed_session_has_left_ends_no_wait_of_the_next_one() -> None:
    """The worker would be one gradient ahead of the ps from then on, and train on weights that lack its last one."""
    with graph_fleet(update={"mode": "async"}, fleet={"workers": 1}) as fleet:
        with fleet.worker(0) as closed:
            closed.push(1, 0, number=0)
            fleet.wait_for_size("registered", 1)
        fleet.advance()
        with fleet.worker(0) as successor:
            assert successor.start.numbers.tolist() == [0]
            for number in (1, 2):
                step = successor.push(1, number, number)
                fleet.wait_for_size("gradients", 1)
                fleet.advance()
                assert step.result(STEP_SECS)[1].tolist() == [[number + 1, 100]]
