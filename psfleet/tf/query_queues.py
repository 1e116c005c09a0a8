"""The queues between the front of a service and its members, on the front's server.

A member has two of its own, in a resource container that no other process uses: it takes queries from one, and adds its
predictions to the other. A member that starts has a new container, so that one which is frozen takes nothing from its
successor. All members add themselves to one queue more when they join.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.inference.tensors import BYTES, DATATYPES, ModelMetadata, TensorMetadata

FRONT = "front"
"""TensorFlow's job of the front in the sessions of members."""
CONTAINER = "psfleet/service"
CAPACITY = 64
"""Of each queue; the front sends fewer batches than this before they are answered."""
PREDICT = "psfleet_predict"
"""Token of the function of a member that the front's graph calls, in-graph."""
RESEND = 0
"""Number of a prediction that asks for all queries again which have no prediction: one may have been lost."""


def member_container(name: str) -> str:
    """The resource container of a member; the name has no underscore (`psfleet.tf.client.names`)."""
    return f"{CONTAINER}/{name}"


class QueryQueues:
    """Both queues of a member, as operations of a graph.

    Args of the constructor:
        graph: Gets the operations.
        device: Of the front; None: this process is the front.
        container: See `member_container`.
        metadata: Inputs and outputs of the model.

    Attributes:
        queries: Elements are the number of a batch, and its inputs.
        predictions: Elements are that number, the step of the weights, an error, and the outputs.
    """

    def __init__(self, graph: tf.Graph, device: str | None, container: str, metadata: ModelMetadata) -> None:
        inputs, outputs = dtypes(metadata.inputs), dtypes(metadata.outputs)
        with graph.as_default(), graph.device(device), graph.container(container):
            self.queries = tf.queue.FIFOQueue(CAPACITY, [tf.int64, *inputs], shared_name="queries")
            self.predictions = tf.queue.FIFOQueue(
                CAPACITY, [tf.int64, tf.int64, tf.string, *outputs], shared_name="predictions"
            )


def joins_queue(graph: tf.Graph, device: str | None) -> tf.queue.FIFOQueue:
    """The queue to which members add themselves; arguments as of `QueryQueues`."""
    with graph.as_default(), graph.device(device), graph.container(CONTAINER):
        return tf.queue.FIFOQueue(CAPACITY, [tf.string], shared_name="joins")


def placeholders(queue: tf.queue.QueueBase) -> list[tf.Tensor]:
    """Placeholders of an element, scalars or tensors of any shape."""
    return [v1.placeholder(dtype) for dtype in queue.dtypes]


def dtypes(tensors: Sequence[TensorMetadata]) -> list[tf.DType]:
    """TensorFlow's types of inputs or outputs."""
    return [tf.string if each.datatype == BYTES else tf.as_dtype(DATATYPES[each.datatype]) for each in tensors]


def answers(address: Address) -> bool:
    """Whether a process listens at an address; one that is frozen does."""
    try:
        with socket.create_connection((address.host, address.port), timeout=1.0):
            return True
    except OSError:
        return False


def empty_outputs(metadata: ModelMetadata) -> list[np.ndarray]:
    """Outputs without rows."""
    return [np.empty([0], DATATYPES[each.datatype]) for each in metadata.outputs]
