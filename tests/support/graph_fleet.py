"""Every ps and worker of a fleet in this process: real servers, shards and worker sessions, no control plane."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ps_service.shard_graph import ShardGraph
from ps_service.shard_plan import ShardPlan
from psfleet.addresses import Address
from psfleet.checkpoint.parts import ShardContent
from psfleet.errors import LostPeerError
from psfleet.job.job import Job, parse_job
from psfleet.job.update import Update
from psfleet.layout import EmbeddingSpec, Layout, Losses, Tables, TensorSpec
from psfleet.polling import wait_until
from psfleet.tf import ShardVariables, container_name, shard_segments
from psfleet.tf.towers import tower_devices
from support.tf_servers import tf_server
from worker_service.frontends.interface import FrontEnd, TrainingGraph
from worker_service.session import WorkerSession
from worker_service.session_start import SessionStart
from worker_service.step import StepGraph
from worker_service.towers import divided

RUN = "fleet"
CONTAINER = container_name(RUN, 1)
SIZE = 16
"""Elements of each tensor: a bucket of its own."""
BUCKET_BYTES = 4 * SIZE
STEP_SECS = 30
DYING_SECS = 4
"""The step deadline of a worker that never sends its last bucket; its session is opened within it, too."""


class TwoTensors:
    """A front end with two tensors of `[SIZE]`; its batch is (x, blocked).

    The gradient of each is x (1 + the other / 8). With `blocked` 1 that of the second tensor never comes.
    """

    parameters = (TensorSpec("first", (SIZE,)), TensorSpec("second", (SIZE,)))
    state: tuple[TensorSpec, ...] = ()
    frozen: tuple[TensorSpec, ...] = ()
    tables: Tables = ()
    losses: Losses = ()
    embeddings: tuple[EmbeddingSpec, ...] = ()

    def build(self, layout: Layout, parameters: Sequence[tf.Tensor], *_: object, **__: object) -> TrainingGraph:
        """See `FrontEnd`."""
        del layout
        x, blocked = tf.compat.v1.placeholder(tf.float32, []), tf.compat.v1.placeholder(tf.int32, [])
        vector = tf.concat(parameters, 0)
        first, second = vector[:SIZE], vector[SIZE:]
        always_empty = tf.queue.FIFOQueue(1, [tf.int32], shapes=[()])
        with tf.control_dependencies([always_empty.dequeue_many(blocked)]):
            late = x * (1 + first / 8)
        return TrainingGraph((x, blocked), tf.zeros([]), (x * (1 + second / 8), late), (), (), None)

    def initial_values(self) -> dict[str, np.ndarray]:
        """See `FrontEnd`."""
        return {spec.name: np.zeros(spec.shape, np.float32) for spec in self.parameters}

    def evaluate(self, values: Mapping[str, np.ndarray], run_loss: Any) -> dict[str, float]:
        """See `FrontEnd`."""
        del values, run_loss
        return {}


TWO_TENSORS: Any = TwoTensors()


@dataclass(frozen=True)
class InProcessWorker:
    """A worker with an open session; `start` is what it read."""

    session: WorkerSession
    start: SessionStart
    threads: ThreadPoolExecutor

    def push(self, x: float, local_step: Any, number: int | None = None) -> Future[tuple[float, np.ndarray]]:
        """Runs a step in the background; the number of a gradient in sync mode is its local step."""
        return self.threads.submit(self.session.train, batch(x), local_step, local_step if number is None else number)


def batch(x: float, blocked: bool = False) -> Sequence[np.ndarray]:
    """A batch of `TwoTensors`."""
    return [np.array(x, np.float32), np.array(blocked, np.int32)]


@dataclass
class GraphFleet:
    """The shards of a fleet that trains `TwoTensors` by plain descent at rate 1 from zeros.

    Attributes:
        queues: A session on the first ps, in which the sizes of its queues are read.
    """

    job: Job
    layout: Layout
    ps: list[Address]
    shards: list[ShardGraph]
    threads: ThreadPoolExecutor
    front_end: FrontEnd
    queues: tf.compat.v1.Session

    @contextmanager
    def worker(self, index: int, step_secs: float = STEP_SECS) -> Iterator[InProcessWorker]:
        """Opens a worker's session; on a server of its own, as a process has."""
        step = _step_graph(self.job.model_dump_json(), index, self.front_end)
        deadlines = self.job.deadlines.model_copy(update={"step_secs": step_secs})
        job = self.job.model_copy(update={"deadlines": deadlines})
        with (
            tf_server([CONTAINER], self.job.device.virtual_cpus) as own,
            WorkerSession(step, job, self.ps, own, index) as session,
        ):
            yield InProcessWorker(session, session.start(), self.threads)

    def die_between_pushes(self, worker: InProcessWorker, x: float, local_step: int, number: int | None = None) -> None:
        """Ends a worker once the first of two ps has its gradient and before the second has it."""
        before = self.size("gradients")
        number = local_step if number is None else number
        step = self.threads.submit(worker.session.train, batch(x, blocked=True), local_step, number)
        self.wait_for_size("gradients", before + 1)
        worker.session.close(wait_secs=0)
        with pytest.raises(LostPeerError):
            step.result(STEP_SECS)

    def wait_for_size(self, queue: str, least: int) -> None:
        """Waits until a queue of shard 0, segment 0 has so many elements; no update may happen meanwhile."""
        what = f"{least} elements in the queue {queue}"
        wait_until(lambda: self.size(queue), STEP_SECS, what, done=lambda size: size >= least, poll_secs=0.02)

    def wait_for_steps(self, steps: Sequence[int]) -> None:
        """Waits until the segments of the first shard are at these global steps."""
        read = _global_steps(self.job.model_dump_json(), self.front_end)
        with tf.compat.v1.Session(f"grpc://{self.ps[0].data}", graph=read.graph) as session:
            found = partial(session.run, read)
            wait_until(found, STEP_SECS, f"steps {steps}", done=lambda now: now.tolist() == list(steps), poll_secs=0.02)

    def size(self, queue: str) -> int:
        """Elements in a queue of the first shard: `gradients` that have arrived, or `waiting` workers.

        In async mode `registered` waits, which are counted in a variable.
        """
        return int(self.queues.run(_queue_sizes(self.job.model_dump_json(), self.front_end)[queue]))

    def advance(self, *shards: int) -> None:
        """Makes the next update of some shards, by default of all."""
        for shard in shards or range(len(self.shards)):
            update = self.threads.submit(self.shards[shard].updates.advance, hold=False)
            update.result(STEP_SECS)

    def state(self) -> dict[str, np.ndarray]:
        """The named tensors of state, as the ps hold them."""
        return self.layout.state.unpack(np.concatenate([content.state for content in self.contents()]))

    def contents(self) -> list[ShardContent]:
        """What each shard would save now."""
        for shard in self.shards:
            shard.take_snapshot()
        return [shard.read_snapshot() for shard in self.shards]

    def weights(self) -> list[float]:
        """One element of each tensor: all of a tensor are equal."""
        vector = np.concatenate([content.parameters for content in self.contents()])
        assert all(len(set(vector[at : at + SIZE].tolist())) == 1 for at in (0, SIZE))
        found: list[float] = vector[::SIZE].tolist()
        return found


@contextmanager
def graph_fleet(
    num_ps: int = 1, front_end: Any = None, values: Mapping[str, np.ndarray] | None = None, **sections: Any
) -> Iterator[GraphFleet]:
    """Starts a server with its shard for each ps.

    Args:
        front_end: Trained instead of `TwoTensors`.
        values: Of its parameters, state and frozen tensors; None: zeros.
        sections: Of the job.
    """
    front_end = front_end or TWO_TENSORS
    fields = {"name": RUN, "program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 1}}
    fields |= {"train": {"steps": 100, "batch_size": 1}, **sections}
    fields["fleet"] = {"ps": num_ps, **sections.get("fleet", {})}
    job = parse_job(fields)
    layout = _layout(job, front_end)
    specs = (*layout.parameters.specs, *layout.state.specs, *layout.frozen.specs)
    values = values or {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}
    sizes = _queue_sizes(job.model_dump_json(), front_end)["gradients"].graph
    with ExitStack() as stack:
        ps = [stack.enter_context(tf_server([CONTAINER])) for _ in range(num_ps)]
        threads = stack.enter_context(ThreadPoolExecutor())
        queues = stack.enter_context(tf.compat.v1.Session(f"grpc://{ps[0].data}", graph=sizes))
        shards = []
        for shard, address in enumerate(ps):
            plan, content = ShardPlan(RUN, 1, shard, job, layout, Path()), _content(layout, shard, values)
            shards.append(ShardGraph(f"grpc://{address.data}", plan, 0, content))
            stack.callback(shards[-1].close)
        yield GraphFleet(job, layout, ps, shards, threads, front_end, queues)


def _content(layout: Layout, shard: int, values: Mapping[str, np.ndarray]) -> ShardContent:
    vectors = [flat.pack(values).reshape(layout.num_ps, -1)[shard] for flat in (layout.parameters, layout.state)]
    return ShardContent(vectors[0], {}, {}, vectors[1], layout.frozen.pack(values).reshape(layout.num_ps, -1)[shard])


def _layout(job: Job, front_end: FrontEnd) -> Layout:
    """In buckets as small as possible, unless the job has another size than the default."""
    own = job.update.bucket_bytes
    num_bytes = BUCKET_BYTES if own == Update().bucket_bytes else own
    tensors = (front_end.parameters, front_end.state, front_end.frozen)
    return Layout.plan(*tensors, job.fleet.ps, num_bytes, losses=front_end.losses, embeddings=front_end.embeddings)


@functools.cache
def _step_graph(job_json: str, index: int, front_end: FrontEnd) -> StepGraph:
    """The graph of a worker and of its successors, built once: sessions do not change it."""
    job = Job.model_validate_json(job_json)
    step = divided(front_end, index, job.fleet.worker_limit, tower_devices(job, index))
    return StepGraph(step, job, _layout(job, front_end), index, RUN, 1)


@functools.cache
def _queue_sizes(job_json: str, front_end: FrontEnd) -> dict[str, tf.Tensor]:
    """The number of elements in each queue of the first shard's first segment that may be waited for."""
    job = Job.model_validate_json(job_json)
    with tf.Graph().as_default():
        layout = _layout(job, front_end)
        first, *_ = shard_segments(job, layout, 0)
        variables = ShardVariables(layout, 0, job.fleet.worker_limit, CONTAINER, device="", segment=first)
        sizes = {name: getattr(variables, name).size() for name in ("gradients", "waiting")}
        return {**sizes, "registered": tf.reduce_sum(variables.registered.read_value())}


@functools.cache
def _global_steps(job_json: str, front_end: FrontEnd) -> tf.Tensor:
    """The global steps of the segments of the first shard."""
    job = Job.model_validate_json(job_json)
    with tf.Graph().as_default():
        layout = _layout(job, front_end)
        found = [
            ShardVariables(layout, 0, job.fleet.worker_limit, CONTAINER, device="", segment=each)
            for each in shard_segments(job, layout, 0)
        ]
        return tf.stack([variables.global_step.read_value() for variables in found])
