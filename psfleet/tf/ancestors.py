"""Which operations of a graph others depend on."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf


def sources(operation: tf.Operation) -> list[tf.Operation]:
    """The operations that one waits for: those of its inputs, and its control inputs."""
    return [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]


def ancestors(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """All operations on which some depend, with these themselves."""
    found = set(operations)
    waiting = list(found)
    while waiting:
        new = set(sources(waiting.pop())) - found
        found |= new
        waiting += new
    return found
