"""Ends the resources of a generation: variables, accumulators and queues in its resource container."""

from __future__ import annotations

import tensorflow as tf
import tensorflow.compat.v1 as v1

QUEUE = "FIFOQueueV2"
"""Type of the operation that makes a queue's handle."""


class ContainerHandles:
    """Handles of all resources of a container that a graph uses, in a small graph of their own.

    `Session.reset` would clear the container too, but would also close the sessions of all other runs on this server.

    Attributes:
        graph: Of the operations below.
        close_queues: Ends the waits at the queues with an error.
        destroy: Destroys the resources.
    """

    def __init__(self, graph: tf.Graph, container: str) -> None:
        makers = [each for each in graph.get_operations() if not each.inputs and _makes_handle(each, container)]
        graph_def = v1.GraphDef(node=[maker.node_def for maker in makers])
        for node in graph_def.node:
            # An optimizer's variables are colocated with operations that are left out.
            node.attr.pop("_class", None)
        with tf.Graph().as_default() as self.graph:
            found = tf.graph_util.import_graph_def(
                graph_def, return_elements=[f"{maker.name}:0" for maker in makers], name=""
            )
            queues = [handle for handle in found if handle.op.type == QUEUE]
            self.close_queues = [tf.raw_ops.QueueCloseV2(handle=each, cancel_pending_enqueues=True) for each in queues]
            self.destroy = [tf.raw_ops.DestroyResourceOp(resource=each, ignore_lookup_error=True) for each in found]


def _makes_handle(operation: tf.Operation, container: str) -> bool:
    """Whether an operation makes the handle of a resource in a container."""
    if not operation.outputs or operation.outputs[0].dtype != tf.resource:
        return False
    return bool(operation.get_attr("container") == container.encode())
