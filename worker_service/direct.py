"""The part of a step graph that needs no other process, in a session of this process alone.

A session on the process's own server starts a thread for each call, and hands the call on to others: beside other busy
processes that costs a small step 0.25 ms of CPU time, and more until the threads have a core. TensorFlow's direct
session runs a call on the thread that makes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.tf.server import fuse_what_runs, session_config
from worker_service.abandonment import may_abandon_steps

if TYPE_CHECKING:
    from worker_service.step import StepGraph

CALLING_THREAD = -1
"""As `RunOptions.inter_op_thread_pool`: operations run on the thread that calls the session (config.proto)."""
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


class DirectGraph:
    """A copy of what a step graph computes without the ps; all names are those of the step graph.

    Attributes:
        graph: The copy.
    """

    def __init__(self, step: StepGraph) -> None:
        fetched = [*(tensor for each in step.steps for tensor in each), *step.accumulate, *step.gradients]
        fetched += [each for each in (step.local_update, step.summaries, step.gradient_norm) if each is not None]
        fetched += [step.parameters, step.state, step.frozen]
        fed = [step.session_number, *step.feeds, step.local_step, step.number, step.microbatch, step.wants_norm]
        elements = [step.graph.as_graph_element(each) for each in (*fetched, *fed) if each is not None]
        self._initializer = step.initializer.name
        self._variables, self._freed = step.variables, step.freed
        names = {element.op.name for element in elements} | {self._initializer}
        self.graph = _copy(step.graph, names)

    def open(self, job: Job) -> v1.Session:
        """A session with the graph, whose variables are initialized."""
        config = session_config(job.device)
        fuse_what_runs(config, self.graph)
        # Otherwise the threads of the first direct session of this process are those of all.
        config.use_per_session_threads = True
        session = v1.Session(graph=self.graph, config=config)
        session.run(self._initializer)
        return session

    def take(self, session: v1.Session, server: v1.Session, writers: Sequence[tf.Tensor | tf.Operation]) -> None:
        """Moves the variables that operations on the server have written.

        Args:
            session: See `open`.
            server: The session with the step graph.
            writers: These operations.
        """
        for name in sorted(_written(writers)):
            variable = self._variables[name]
            value = server.run(variable._graph_element)
            assign = self.graph.get_operation_by_name(variable.initializer.name)
            session.run(assign, {assign.inputs[1]: value})
            server.run(self._freed[name])


def options_of_step(job: Job, options: v1.RunOptions) -> v1.RunOptions:
    """The options of a call of a direct session: with one thread for operations it is the one that calls."""
    config = session_config(job.device)
    if config.inter_op_parallelism_threads != 1:
        return options
    return v1.RunOptions(timeout_in_ms=options.timeout_in_ms, inter_op_thread_pool=CALLING_THREAD)


def resource_variables(graph: tf.Graph) -> dict[str, Any]:
    """The variables of a graph by the names of their handles."""
    keys = v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.LOCAL_VARIABLES
    return {each.handle.op.name: each for key in keys for each in graph.get_collection(key) if hasattr(each, "handle")}


def _copy(graph: tf.Graph, names: Iterable[str]) -> tf.Graph:
    """The operations with some names, and those that they need, on the devices of a process without a task."""
    content = v1.graph_util.extract_sub_graph(graph.as_graph_def(), sorted(names))
    for function in content.library.function:
        for node in function.node_def:
            node.device = TASK.sub("", node.device)
    known = {f"loc:@{node.name}".encode() for node in content.node}
    for node in content.node:
        node.device = TASK.sub("", node.device)
        if "_class" in node.attr:
            # Operations beside which it is placed, some of which can be left out.
            node.attr["_class"].list.s[:] = [each for each in node.attr["_class"].list.s if each in known]
    with tf.Graph().as_default() as copy:
        tf.import_graph_def(content, name="")
    copy.finalize()
    return copy


def _written(operations: Sequence[tf.Tensor | tf.Operation]) -> set[str]:
    """The names of the variables' handles that operations, or those that they need, assign."""
    left = [each.op if isinstance(each, tf.Tensor) else each for each in operations]
    seen = set(left)
    while left:
        operation = left.pop()
        needed = {each.op for each in operation.inputs} | set(operation.control_inputs)
        left += needed - seen
        seen |= needed
    return {each.inputs[0].op.name for each in seen if each.type == "AssignVariableOp"}
