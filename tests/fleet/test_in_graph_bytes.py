"""With in-graph replication the batches of other workers cross no network: counted on every connection to a worker.

The servers are real, but all in this process, and a relay stands before the server of worker 1.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from support.counting_relay import counting_relay
from support.graph_fleet import RUN, STEP_SECS, graph_fleet
from support.program_samples import sample_job
from support.programs import exact_graph_program

from psfleet.job.program import GraphProgram
from psfleet.processes.ports import free_addresses
from psfleet.tf.server import boot
from worker_service.batches import BatchNumbers
from worker_service.frontends import FrontEnd, front_end
from worker_service.in_graph.batch_function import BatchFunction
from worker_service.in_graph.merged import merged
from worker_service.progress import TrainingProgress
from worker_service.session import WorkerSession
from worker_service.step import StepGraph

BATCH_SIZE = 40_000
"""Examples of 52 bytes: a batch is much larger than the gradient."""
STEPS = 10
WORKERS = 2


def test_less_than_a_hundredth_of_the_batches_bytes_crosses_the_network() -> None:
    x = np.random.default_rng(3).normal(size=(BATCH_SIZE, exact_graph_program.FEATURES)).astype(np.float32)
    batch = (x, np.zeros(BATCH_SIZE, np.int32))
    read: list[int] = []

    def at(number: int) -> tuple[np.ndarray, ...]:
        read.append(number)
        return batch

    function = BatchFunction(1)
    batches: Any = SimpleNamespace(at=at, numbers=BatchNumbers(True, WORKERS))
    progress = TrainingProgress()
    function.bind(batches, progress, int)
    program = GraphProgram(loss=exact_graph_program.loss, train=exact_graph_program.train)
    front = front_end(program, sample_job(), WORKERS, 0)
    fleet_of = {"fleet": {"workers": WORKERS}, "update": {"replication": "in_graph", "bucket_bytes": 4096}}
    with graph_fleet(front_end=front, values=front.initial_values(), **fleet_of) as fleet:
        own, other = free_addresses(WORKERS)
        boot(own, None)
        boot(other, None)

        def build(index: int) -> StepGraph:
            replica: FrontEnd = front.of_worker(index)
            return StepGraph(replica, fleet.job, fleet.layout, index, RUN, 1)

        (step,) = merged(build, WORKERS, is_sync=True)
        with (
            counting_relay(other) as counted,
            WorkerSession(step, fleet.job, fleet.ps, own, 0, {1: counted.address.data}) as session,
        ):
            start, before = session.start(), 0
            for number in range(start.global_step, STEPS):
                if number == 1:
                    # The first step sends the graph.
                    before = counted.to_server + counted.from_server
                made = fleet.threads.submit(session.train, batch, number, number)
                fleet.advance()
                _, shards = made.result(STEP_SECS)
                fleet.shards[0].updates.release_barrier()
                assert shards.tolist() == [[number + 1, 100]]
            passed = counted.to_server + counted.from_server - before
    assert read == list(range(STEPS))
    assert (progress.step, progress.pushed) == (STEPS - 1, STEPS - 1)
    assert (x == np.random.default_rng(3).normal(size=x.shape).astype(np.float32)).all(), "a step has changed its batch"
    batches_bytes = (STEPS - 1) * sum(array.nbytes for array in batch)
    gradients_bytes = 4 * (STEPS - 1) * fleet.layout.parameters.size
    assert gradients_bytes < passed < 0.01 * batches_bytes, f"{passed} bytes of {batches_bytes} passed"
