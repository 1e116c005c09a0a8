"""What crosses the network in a step depends on ps and buckets alone, counted in the graphs that TensorFlow runs.

The servers are real, but all in this process: TensorFlow cuts the worker's graph in one piece for each task of the
session's ClusterSpec, and puts a pair of _Send and _Recv wherever a tensor goes from one piece to another.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import psfleet
from ps_service.shard_graph import ShardGraph
from ps_service.shard_plan import ShardPlan
from psfleet.addresses import Address
from psfleet.checkpoint.parts import ShardContent
from psfleet.job.job import Job, parse_job
from psfleet.layout import Layout
from psfleet.processes.ports import free_addresses
from psfleet.tf import worker_job
from psfleet.tf.server import boot, session_config
from worker_service.frontends import FrontEnd, front_end
from worker_service.step import StepGraph

NUM_PARAMETERS = 7680
"""Divides into 3 and into 40 variables of a whole number of aligned elements: the same bytes on the ps."""
BATCH = np.ones(2, np.float32)
RUN = "count"
WORKER = f"{worker_job(RUN)}:0"
STEP_SECS = 30
MANY_STATES = ("float32", "int64", "float32", "int64", "float32")
"""Types of state; with these, all fetches are counted in one session."""
FETCHES = ("shard_steps", "load_frozen", "pull", "step", "await_step")
"""Attributes of `StepGraph` that a worker fetches, in an order in which none has to wait for another."""

Crossings = dict[tuple[str, str], int]
"""By sending and receiving task, the tensors that went between them."""


@pytest.mark.parametrize(
    ("num_variables", "mode", "num_ps", "bucket_bytes", "buckets_per_ps"),
    [(40, "sync", 1, 65536, 1), (3, "sync", 2, 8192, 2), (40, "sync", 2, 8192, 2), (40, "async", 1, 8192, 4)],
)
def test_the_tensors_of_a_step_depend_on_ps_and_buckets_and_not_on_variables(
    num_variables: int, mode: str, num_ps: int, bucket_bytes: int, buckets_per_ps: int
) -> None:
    counted = crossings("step", num_variables, mode=mode, num_ps=num_ps, bucket_bytes=bucket_bytes)
    check_buckets_alone(counted, num_ps, buckets_per_ps)


def test_a_push_begins_when_the_ps_has_the_one_two_before_it() -> None:
    """The ps says so of all but the last two of its four buckets, which are segments."""
    counted = crossings("step", num_ps=1, bucket_bytes=8192)
    assert (to_ps(counted, 1), to_worker(counted, 1)) == ([4], [4 + 2])


@pytest.mark.parametrize("states", [("int64",), MANY_STATES], ids=["one", "many"])
def test_state_is_a_part_of_the_buckets_and_takes_no_message(states: tuple[str, ...]) -> None:
    check_buckets_alone(crossings("step", states=states), num_ps=2, buckets_per_ps=1)


def check_buckets_alone(counted: Crossings, num_ps: int, buckets_per_ps: int) -> None:
    """Only the buckets: local step and global step are parts of small buckets, the barrier needs no message."""
    for way in (to_ps(counted, num_ps), to_worker(counted, num_ps)):
        assert way == [buckets_per_ps] * num_ps
    assert sum(counted.values()) == 2 * num_ps * buckets_per_ps


def test_a_pull_sends_its_step_to_a_ps_and_gets_steps_buckets_and_state() -> None:
    counted = crossings("pull", states=MANY_STATES)
    assert to_ps(counted, 2) == [1, 1]
    assert to_worker(counted, 2) == [3, 3]


@pytest.mark.parametrize("fetch", FETCHES)
def test_no_ps_ever_sends_to_another_ps(fetch: str) -> None:
    """They know of no other: the design's tunnels lead from workers to ps and back."""
    between = [pair for pair in crossings(fetch, states=MANY_STATES) if WORKER not in pair]
    assert not between


def to_ps(counted: Crossings, num_ps: int) -> list[int]:
    """By ps, the tensors that the worker sends to it."""
    return [counted.get((WORKER, f"ps:{at}"), 0) for at in range(num_ps)]


def to_worker(counted: Crossings, num_ps: int) -> list[int]:
    """By ps, the tensors that it sends to the worker."""
    return [counted.get((f"ps:{at}", WORKER), 0) for at in range(num_ps)]


@functools.cache
def front(num_variables: int, states: tuple[str, ...]) -> FrontEnd:
    """A program with NUM_PARAMETERS in equal variables, and counters beside them that each step raises."""

    def loss(batch: Any) -> Any:
        for index, dtype in enumerate(states):
            zeros = v1.zeros_initializer()
            count = v1.get_variable(f"count_{index}", [3], dtype, initializer=zeros, trainable=False)
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_add(count, tf.ones([3], dtype)))
        shape, initializer = [NUM_PARAMETERS // num_variables], v1.ones_initializer()
        values = [v1.get_variable(f"v_{index}", shape, initializer=initializer) for index in range(num_variables)]
        return tf.add_n([tf.nn.l2_loss(value) for value in values]) * tf.reduce_mean(batch)

    program = psfleet.GraphProgram(loss=loss, train=lambda *_: tf.data.Dataset.from_tensors(np.float32(1)))
    return front_end(program, job_of("sync", 1, 65536), num_shards=1, index=0)


def job_of(mode: str, num_ps: int, bucket_bytes: int) -> Job:
    """A job with one worker."""
    return parse_job(
        {
            "name": RUN,
            "program": "program:build",
            "fleet": {"ps": num_ps},
            "update": {"mode": mode, "bucket_bytes": bucket_bytes},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 8, "batch_size": len(BATCH)},
        }
    )


def crossings(
    fetch: str,
    num_variables: int = 3,
    states: tuple[str, ...] = (),
    *,
    mode: str = "sync",
    num_ps: int = 2,
    bucket_bytes: int = 65536,
) -> Crossings:
    """What goes between tasks in one run of an attribute of the only worker's `StepGraph`."""
    fetches = FETCHES if states == MANY_STATES else (fetch,)
    return crossings_by_fetch(fetches, num_variables, states, mode, num_ps, bucket_bytes)[fetch]


@functools.cache
def crossings_by_fetch(
    fetches: tuple[str, ...],
    num_variables: int,
    states: tuple[str, ...],
    mode: str,
    num_ps: int,
    bucket_bytes: int,
) -> dict[str, Crossings]:
    """What goes between tasks in one run of each of some attributes, all in one session."""
    job = job_of(mode, num_ps, bucket_bytes)
    program = front(num_variables, states)
    layout = Layout.plan(program.parameters, program.state, program.frozen, num_ps, bucket_bytes)
    *ps, own = free_addresses(num_ps + 1)
    with serving(ps, job, layout) as advance, worker(ps, own, program, job, layout) as (session, step):
        return {fetch: crossings_of(fetch, session, step, advance, num_ps) for fetch in fetches}


def crossings_of(
    fetch: str, session: v1.Session, step: StepGraph, advance: Callable[[], None], num_ps: int
) -> Crossings:
    """What goes between tasks in one run of an attribute of a `StepGraph`."""
    updates = threading.Thread(target=advance if fetch == "step" else lambda: None, daemon=True)
    updates.start()
    metadata = v1.RunMetadata()
    options = v1.RunOptions(output_partition_graphs=True, timeout_in_ms=STEP_SECS * 1000)
    # A local step before the shards' own opens the barrier of `await_step`; a step has to be of this global step.
    feeds = {step.feeds[0]: BATCH, step.number: 0, step.local_step: 0 if fetch == "step" else -1}
    fetches = step.steps[0] if fetch == "step" else getattr(step, fetch)
    session.run(fetches, feeds, options=options, run_metadata=metadata)
    updates.join(STEP_SECS)
    assert not updates.is_alive(), "the ps did not make the step"
    pieces = metadata.partition_graphs
    assert len(pieces) == num_ps + 1, "each task is asked once to run its piece"
    sent, received = counted(pieces, "Send"), counted(pieces, "Recv")
    assert sent == received
    return received


def counted(pieces: Any, direction: str) -> Crossings:
    """Nodes that send or receive between two tasks, by the two; feeds and fetches of the session do not count."""
    counts: Counter[tuple[str, str]] = Counter()
    for node in (node for piece in pieces for node in piece.node if node.op in (f"_{direction}", f"_Host{direction}")):
        tasks = [tf.DeviceSpec.from_string(node.attr[f"{end}_device"].s.decode()) for end in ("send", "recv")]
        sender, receiver = (f"{task.job}:{task.task}" for task in tasks)
        if sender != receiver:
            counts[sender, receiver] += 1
    return dict(counts)


@contextmanager
def serving(ps: list[Address], job: Job, layout: Layout) -> Iterator[Callable[[], None]]:
    """A server with its shard of zeros for each ps; yields what makes the next update of all."""

    def zeros(kind: str) -> np.ndarray:
        flat = getattr(layout, kind)
        return np.zeros(flat.shard_size, flat.unit_dtype)

    content = ShardContent(zeros("parameters"), {}, {}, zeros("state"), zeros("frozen"))
    shards = [
        ShardGraph(boot(address, None), ShardPlan(RUN, 1, shard, job, layout, Path()), 0, content)
        for shard, address in enumerate(ps)
    ]

    def advance() -> None:
        for shard in shards:
            shard.updates.advance(hold=False)

    try:
        yield advance
    finally:
        for shard in shards:
            shard.close()


@contextmanager
def worker(
    ps: list[Address], own: Address, program: FrontEnd, job: Job, layout: Layout
) -> Iterator[tuple[v1.Session, StepGraph]]:
    """A server, step and session of the worker; the session is made as `worker_service.session` makes it."""
    target = boot(own, None)
    step = StepGraph(program, job, layout, 0, RUN, 1)
    cluster = tf.train.ClusterSpec({"ps": [address.data for address in ps], step.worker_job: {0: own.data}})
    config = session_config(None)
    config.cluster_def.CopyFrom(cluster.as_cluster_def())
    config.experimental.share_session_state_in_clusterspec_propagation = True
    config.operation_timeout_in_ms = STEP_SECS * 1000
    with v1.Session(target, graph=step.graph, config=config) as session:
        session.run(step.initializer)
        session.run(step.pull, {step.local_step: 0})
        yield session, step
