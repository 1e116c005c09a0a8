"""The part of a step graph that needs no other process, in a session of this process alone.

A session on the process's own server starts a thread for each call, and hands the call on to others. Beside other busy
processes that adds 0.25 ms of CPU time to a small step, and more until the threads have a core. TensorFlow's direct
session runs a call on the thread that makes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.tf.server import fuse_what_runs, num_op_threads, session_config
from psfleet.tf.subgraph import subgraph
from worker_service.abandonment import may_abandon_steps

CALLING_THREAD = -1
"""As `RunOptions.inter_op_thread_pool`: operations run on the thread that calls the session (config.proto)."""
MOVED_BYTES = 64 << 20
"""Of the variables that move in one call. Each set of variables is a graph that TensorFlow prepares."""
TASK = re.compile(r"/(job|replica|task):[^/]*")


def can_be_direct(job: Job) -> bool:
    """Whether all operations of a step with connections are of this worker's CPU.

    The ps in this process with `fleet.colocate`, steps that may be abandoned, and parts of a replica need its server.
    GPUs and towers belong to the devices of the server, too.
    """
    return not (
        job.fleet.colocate
        or job.fleet.parts > 1
        or may_abandon_steps(job)
        or job.device.replicas != 1
        or job.device.virtual_cpus is not None
        or tf.config.list_physical_devices("GPU")
    )


class DirectPart:
    """Moves the variables of a worker's graph to a direct session, which has a copy of what runs there.

    Args of the constructor:
        graph: Of the worker, all variables included; operations are added to it.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        keys = v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.LOCAL_VARIABLES
        every: list[Any] = [each for key in keys for each in graph.get_collection(key)]
        self._variables = {each.handle.op.name: each for each in every if hasattr(each, "handle")}
        self._freed = {
            name: tf.raw_ops.DestroyResourceOp(resource=each.handle) for name, each in self._variables.items()
        }
        self._copy: tf.Graph | None = None

    def open(self, job: Job, operations: Iterable[tf.Operation], initializer: tf.Operation) -> v1.Session:
        """A session with some operations and those that they need; its variables are initialized.

        Names are those of the worker's graph.
        """
        if self._copy is None:
            self._copy = _copy(self._graph, {each.name for each in (*operations, initializer)})
        config = session_config(job.device)
        fuse_what_runs(config, self._copy)
        # Otherwise the threads of the first direct session of this process are those of all.
        config.use_per_session_threads = True
        session = v1.Session(graph=self._copy, config=config)
        session.run(initializer.name)
        return session

    def take(
        self, session: v1.Session, server: v1.Session, writers: Sequence[tf.Operation], options: v1.RunOptions
    ) -> None:
        """Moves the variables that operations on the server have written.

        Args:
            session: See `open`.
            server: The session with the worker's graph.
            writers: These operations, which assign variables themselves or through those that they need.
            options: Of a call on the server.
        """
        # In several calls, so that few are in memory twice.
        for names in _groups({name: self._variables[name] for name in sorted(_written(writers))}):
            variables = [self._variables[name] for name in names]
            values = server.run([each._graph_element for each in variables], options=options)
            server.run([self._freed[name] for name in names], options=options)
            assigns = [session.graph.get_operation_by_name(each.initializer.name) for each in variables]
            session.run(assigns, {each.inputs[1]: value for each, value in zip(assigns, values, strict=True)})


def options_of_step(job: Job) -> v1.RunOptions:
    """The options of a call of a direct session: with one thread for operations it is the one that calls.

    Without a timeout, which would not end an operation; connections have their own, see `StepWatch`, too.
    """
    has_one = num_op_threads(session_config(job.device)) == 1
    return v1.RunOptions(inter_op_thread_pool=CALLING_THREAD if has_one else 0)


def _copy(graph: tf.Graph, names: Collection[str]) -> tf.Graph:
    """The operations with some names, and those that they need, on the devices of a process without a task."""
    content = subgraph(graph.as_graph_def(), names, on=lambda device: TASK.sub("", device))
    with tf.Graph().as_default() as copy:
        tf.import_graph_def(content, name="")
    copy.finalize()
    return copy


def _groups(variables: Mapping[str, tf.Variable]) -> list[list[str]]:
    """Their names in groups of at most `MOVED_BYTES`, or of one."""
    found: list[list[str]] = []
    left = 0
    for name, variable in variables.items():
        num_bytes = variable.dtype.size * variable.shape.num_elements()
        if not found or num_bytes > left:
            found.append([])
            left = MOVED_BYTES
        found[-1].append(name)
        left -= num_bytes
    return found


def _written(operations: Sequence[tf.Operation]) -> set[str]:
    """The names of the variables' handles that operations, or those that they need, assign."""
    left, seen = list(operations), set(operations)
    while left:
        operation = left.pop()
        needed = {each.op for each in operation.inputs} | set(operation.control_inputs)
        left += needed - seen
        seen |= needed
    return {each.inputs[0].op.name for each in seen if each.type == "AssignVariableOp"}
