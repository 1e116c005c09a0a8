"""Places in the graph of a step at which it can end early.

When an operation fails, TensorFlow's executor still runs all others whose inputs are there (NodeDone in executor.cc):
the call ends when all of it is computed that does not depend on the one. So operations in between have to fail, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

NUM_POINTS = 20
"""Of a step; each takes some microseconds."""
CONTROL_FLOW = {"Switch", "RefSwitch", "Enter", "RefEnter"}
"""What is behind them may run not at all, or many times. A loop ends by itself (LoopCondOp in control_flow_ops.cc)."""


def add_points(
    operations: Sequence[tf.Operation], results: Sequence[tf.Tensor], failing: Callable[[], tf.Operation]
) -> int:
    """Adds points between operations.

    Args:
        operations: New ones of a graph, in the order in which they were made.
        results: What they compute.
        failing: Makes an operation that fails if the step is to end.

    Returns:
        The number of points; 0 with control flow of TensorFlow 1 among the operations.
    """
    needed = _ancestors(results)
    order = [operation for operation in operations if operation in needed]
    place = {operation: at for at, operation in enumerate(order)}
    inputs = [[place.get(tensor.op, -1) for tensor in operation.inputs] for operation in order]
    is_sorted = all(max(places, default=-1) < at for at, places in enumerate(inputs))
    if not is_sorted or any(operation.type in CONTROL_FLOW for operation in order):
        return 0
    stride = -(-len(order) // (NUM_POINTS + 1))
    ends = range(stride, len(order), stride)
    for end in ends:
        with tf.control_dependencies([order[end - 1]]):
            point = failing()
        for at in range(end, min(end + stride, len(order))):
            # Operations without an earlier input wait for one that has one, or have none at all.
            if any(earlier < end for earlier in inputs[at]):
                order[at]._add_control_input(point)
    return len(ends)


def _ancestors(results: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """All operations on which results depend."""
    found: set[tf.Operation] = set()
    waiting = [tensor.op for tensor in results]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return found
