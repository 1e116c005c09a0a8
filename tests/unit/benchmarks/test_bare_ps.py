"""The contender `bare`: its links share whole arrays, and its steps average the gradients of both workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.bare_ps import Owner, Worker, beside_ps, colocated, shared_links
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, Workload
from psfleet.addresses import Address
from psfleet.processes.ports import free_addresses

pytestmark = pytest.mark.usefixtures("closed_links")

WORKLOAD = Workload(3, "sgd", steps=2, warmup_steps=0)
STEPS = 2
SECS = 60.0


def with_ps(workers: Sequence[Worker]) -> list[np.ndarray]:
    """The parameters of both workers after the steps, with a ps of its own."""
    address = free_addresses(1)[0]
    with ThreadPoolExecutor(1 + NUM_WORKERS) as pool:
        accepting = pool.submit(shared_links, address, NUM_WORKERS, workers[0].layout)
        # All ends at once, each of which waits for the other one's memory.
        steps = list(pool.map(beside_ps, workers, [address] * NUM_WORKERS))
        owner = Owner(WORKLOAD, workers[0].layout, 0, accepting.result(SECS))
        done = [pool.submit(repeat, owner.step), *(pool.submit(repeat, step, range(STEPS)) for step in steps)]
        for each in done:
            each.result(SECS)
    return [worker.parameters for worker in workers]


def without_ps(workers: Sequence[Worker]) -> list[np.ndarray]:
    """The parameters of both workers after the steps, each the owner of a half."""

    def train(index: int, addresses: Sequence[Address]) -> None:
        repeat(colocated(WORKLOAD, workers[index], index, addresses), range(STEPS))

    addresses = free_addresses(NUM_WORKERS)
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        for each in [pool.submit(train, index, addresses) for index in range(NUM_WORKERS)]:
            each.result(SECS)
    return [worker.parameters for worker in workers]


@pytest.mark.parametrize(("num_shards", "train"), [(1, with_ps), (2, without_ps)])
def test_a_step_applies_the_average_gradient(
    num_shards: int, train: Callable[[Sequence[Worker]], list[np.ndarray]]
) -> None:
    workers = [Worker(WORKLOAD, index, num_shards) for index in range(NUM_WORKERS)]
    expected = workers[0].parameters.copy()
    for step in range(STEPS):
        # All shards of both workers' gradients, at the parameters of this step.
        for worker in workers:
            worker.parameters[:] = expected
        gradients = [
            np.concatenate([piece for shard in worker.gradient(step) for piece in shard]) for worker in workers
        ]
        assert all(np.any(gradient) for gradient in gradients)
        expected -= LEARNING_RATE * np.mean(gradients, axis=0)
    # New ones, whose parameters are the initial ones.
    for parameters in train([Worker(WORKLOAD, index, num_shards) for index in range(NUM_WORKERS)]):
        np.testing.assert_allclose(parameters, expected, atol=1e-6)


def repeat(step: Callable[..., object], arguments: Sequence[int] = ()) -> None:
    """Makes the steps, with their numbers if they take them."""
    for number in range(STEPS):
        step(*arguments[number : number + 1])
