"""One graph with the replicas of all workers: each is built as its worker builds it between graphs, and imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf
import tensorflow.compat.v1 as v1

from worker_service.in_graph.batch_function import requested_batch
from worker_service.session_errors import REPLICA
from worker_service.step import StepGraph


@dataclass(frozen=True)
class ReplicaStep:
    """The step of one replica, or of all together, in the graph of all. Attributes are those of `StepGraph`.

    Each of `steps` has the loss, and the steps of the shards; all together also those that the other replicas have
    pulled, which are the same.
    """

    graph: tf.Graph
    worker_job: str
    feeds: tuple[tf.Tensor, ...]
    local_step: tf.Tensor
    number: tf.Tensor
    microbatch: tf.Tensor
    accumulate: list[tf.Tensor]
    steps: list[list[tf.Tensor]]
    order: Sequence[int]
    loss_names: Sequence[str]
    pull: tf.Tensor
    summaries: tf.Tensor | None
    wants_norm: tf.Tensor | None
    gradient_norm: tf.Tensor | None
    gradients: list[tf.Tensor]
    load_frozen: tf.Operation
    parameters: list[tf.Tensor]
    state: tf.Tensor
    frozen: tf.Tensor
    shard_steps: tf.Tensor
    initializer: tf.Operation
    await_step: tf.Tensor | None
    local_update: tf.Tensor | None = None
    abandonment: None = None
    connections: None = None
    session_number: None = None
    direct: None = None


def merged(build: Callable[[int], StepGraph], num_replicas: int, is_sync: bool, joins: int = 1) -> list[ReplicaStep]:
    """The replicas in one graph.

    They share the placeholders of the numbers. The batch of each replica but the first comes from its worker.

    Args:
        build: Returns the graph of the worker with an index, with as many tasks.
        num_replicas: Number of workers.
        is_sync: Whether all replicas make each step together.
        joins: Number of processes that have been the chief; see `copies_of`.

    Returns:
        In sync mode one step of all, else one for each.
    """
    with tf.Graph().as_default() as graph:
        local_step = v1.placeholder(tf.int64, [], name="local_step")
        number = v1.placeholder(tf.int64, [], name="number")
        microbatch = v1.placeholder(tf.int64, [], name="microbatch")
        replicas = []
        for index in range(num_replicas):
            source = build(index)
            shared = {source.local_step.name: local_step, source.number.name: number}
            with tf.device(_device(source.worker_job, index)):
                own = shared | {source.microbatch.name: number if source.microbatch is source.number else microbatch}
                replicas.append(_imported(graph, source, index, own, is_sync, joins))
        with tf.device(_device(replicas[0].worker_job, 0)):
            steps = [_together(replicas)] if is_sync else _apart(replicas)
        graph.finalize()
    return steps


def _device(worker_job: str, index: int) -> str:
    return f"/job:{worker_job}/task:{index}"


def _imported(
    graph: tf.Graph, source: StepGraph, index: int, shared: Mapping[str, tf.Tensor], is_sync: bool, joins: int
) -> ReplicaStep:
    """Imports a worker's graph into the default graph."""
    microbatch = shared[source.microbatch.name]
    placed = dict(shared)
    if index:
        specs = [tf.TensorSpec(feed.shape, feed.dtype) for feed in source.feeds]
        batch = requested_batch(microbatch, specs)
        placed |= {feed.name: value for feed, value in zip(source.feeds, batch, strict=True)}
    awaited = source.await_step if is_sync else None
    single = {
        "pull": source.pull,
        "summaries": source.summaries,
        "wants_norm": source.wants_norm,
        "gradient_norm": source.gradient_norm,
        "load_frozen": source.load_frozen,
        "state": source.state,
        "frozen": source.frozen,
        "shard_steps": source.shard_steps,
        "initializer": source.initializer,
        "await_step": awaited,
    }
    lists = {
        "feeds": () if index else source.feeds,
        "accumulate": source.accumulate,
        "gradients": source.gradients,
        "parameters": source.parameters,
        **{f"step {loss}": step for loss, step in enumerate(source.steps)},
    }
    names = {key: source.graph.as_graph_element(element).name for key, element in single.items() if element is not None}
    wanted = [*names.values(), *(source.graph.as_graph_element(each).name for each in _flat(lists))]
    found = iter(tf.import_graph_def(_definition(source.graph, index, joins), placed, wanted, name=f"{REPLICA}{index}"))
    one = dict.fromkeys(single) | {key: next(found) for key in names}
    several = {key: [next(found) for _ in elements] for key, elements in lists.items()}
    one["initializer"] = tf.group(one["initializer"], *_destroyed(graph, index, joins))
    return ReplicaStep(
        graph=graph,
        worker_job=source.worker_job,
        local_step=shared[source.local_step.name],
        number=shared[source.number.name],
        microbatch=microbatch,
        feeds=tuple(several["feeds"]),
        accumulate=several["accumulate"],
        steps=[several[f"step {loss}"] for loss in range(len(source.steps))],
        order=source.order,
        loss_names=source.loss_names,
        gradients=several["gradients"],
        parameters=several["parameters"],
        **one,
    )


def _flat(lists: Mapping[str, Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    return [each for elements in lists.values() for each in elements]


def copies_of(joins: int) -> str:
    """The resource container of the workers' variables, in a session of a chief.

    A worker outlives chiefs. One that was frozen in a step, and has been replaced, has parts of that step on the other
    workers, which may still store what they have pulled: not where the next chief's replicas have their parameters.

    Args:
        joins: Number of processes that have been the chief, this one included.
    """
    return f"copies-{joins % 2}"


def _destroyed(graph: tf.Graph, index: int, joins: int) -> list[tf.Operation]:
    """Destroys the variables of a replica that a chief before has left on its worker."""
    own = copies_of(joins).encode()
    found = [node.node_def for node in graph.get_operations() if node.name.startswith(f"{REPLICA}{index}/")]
    destroyed = []
    for node in found:
        attr = node.attr
        if "shared_name" in attr and attr["container"].s == own:
            # Each device of a worker has resources of its own.
            with tf.device(node.device):
                handle = tf.raw_ops.VarHandleOp(
                    dtype=attr["dtype"].type,
                    shape=attr["shape"].shape,
                    shared_name=attr["shared_name"].s,
                    container=copies_of(joins + 1),
                )
                destroyed.append(tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True))
    return destroyed


def _definition(graph: tf.Graph, index: int, joins: int) -> tf.compat.v1.GraphDef:
    """The graph, with other names for the frames of its loops, and its own variables in the chief's container.

    An executor knows a frame by its name alone: two loops of one name on one ps would be one loop.
    """
    definition = graph.as_graph_def(add_shapes=True)
    for node in definition.node:
        if node.op == "VarHandleOp" and not node.attr["container"].s:
            node.attr["container"].s = copies_of(joins).encode()
        if "frame_name" in node.attr:
            node.attr["frame_name"].s = f"{REPLICA}{index}/".encode() + node.attr["frame_name"].s
    return definition


def _together(replicas: Sequence[ReplicaStep]) -> ReplicaStep:
    """All replicas as one worker; its numbers are those that every replica has reached."""
    first = replicas[0]
    progress = tf.stack([each.pull for each in replicas])
    accumulate = []
    for loss, *of_others in zip(*(each.accumulate for each in replicas), strict=True):
        with tf.control_dependencies(of_others):
            accumulate.append(tf.identity(loss))
    return replace(
        first,
        steps=[
            [*own, *(progress for _, progress in of_others)]
            for own, *of_others in zip(*(each.steps for each in replicas), strict=True)
        ],
        accumulate=accumulate,
        # Global step and final step, and the started step: all are equal if every replica pulled the same step.
        pull=tf.concat([tf.reduce_min(progress[..., :2], 0), tf.reduce_max(progress[..., 2:], 0)], 1),
        shard_steps=_lowest([each.shard_steps for each in replicas]),
        await_step=_lowest([each.await_step for each in replicas]),
        load_frozen=tf.group(*(each.load_frozen for each in replicas)),
        initializer=tf.group(*(each.initializer for each in replicas)),
    )


def _lowest(tensors: Sequence[tf.Tensor | None]) -> tf.Tensor:
    return tf.reduce_min(tf.stack(tensors), 0)


def _apart(replicas: Sequence[ReplicaStep]) -> list[ReplicaStep]:
    """Each replica by itself; the first opens the session for all."""
    first, *others = replicas
    return [replace(first, initializer=tf.group(*(each.initializer for each in replicas))), *others]
