"""Places in the graph of a step at which it can end early.

When an operation fails, TensorFlow's executor still runs all others whose inputs are there (NodeDone in executor.cc):
the call ends when all of it is computed that does not depend on the one. So operations in between have to fail, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

from psfleet.tf.ancestors import ancestors, sources

NUM_POINTS = 20
"""Of a step; each takes some microseconds."""
CONTROL_FLOW = {"Switch", "RefSwitch", "Enter", "RefEnter"}
"""What is behind them may run not at all, or many times. A loop ends by itself (LoopCondOp in control_flow_ops.cc)."""


def add_points(
    operations: Sequence[tf.Operation],
    results: Sequence[tf.Tensor],
    failing: Callable[[], tf.Operation],
    device: str = "",
) -> int:
    """Adds points between operations.

    They follow the depth of the operations and not the order in which these were made: else one of two branches, as the
    towers of a worker, would wait for the other. Operations of other tasks have none: each would be a message.

    Args:
        operations: New ones of a graph.
        results: What they compute.
        failing: Makes an operation that fails if the step is to end.
        device: Of the task that ends it.

    Returns:
        The number of points; 0 with control flow of TensorFlow 1 among the operations.
    """
    needed = ancestors(tensor.op for tensor in results)
    made = [operation for operation in operations if operation in needed]
    if any(operation.type in CONTROL_FLOW for operation in made):
        return 0
    levels = _levels(made)
    own = [operation for operation in made if levels[operation] and _task(operation.device) == _task(device)]
    order = sorted(own, key=levels.__getitem__)
    place = {operation: at for at, operation in enumerate(order)}
    ends: list[int] = []
    for at, (last, operation) in enumerate(itertools.pairwise(order), start=1):
        if levels[last] < levels[operation] and at * (NUM_POINTS + 1) >= len(order) * (len(ends) + 1):
            ends.append(at)
    for end, next_end in itertools.pairwise([*ends, len(order)]):
        with tf.control_dependencies([order[end - 1]]):
            point = failing()
        for operation in order[end:next_end]:
            # All others wait with an input that does. Operations that wait for a point are not fused with others.
            if all(place.get(tensor.op, -1) < end for tensor in operation.inputs):
                operation._add_control_input(point)
    return len(ends)


def _task(device: str) -> str:
    return device.partition("/device:")[0]


def _levels(operations: Sequence[tf.Operation]) -> dict[tf.Operation, int]:
    """How many of the operations at least run one after the other before each of them."""
    among = set(operations)
    levels: dict[tf.Operation, int] = {}
    waiting = list(operations)
    while waiting:
        operation = waiting[-1]
        before = [each for each in sources(operation) if each in among]
        if unknown := [each for each in before if each not in levels]:
            waiting += unknown
        else:
            levels[waiting.pop()] = max((levels[each] + 1 for each in before), default=0)
    return levels
