"""A copy of a shard inside TensorFlow: taken between two updates, read on another thread while updates continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.checkpoint.parts import ShardContent
from psfleet.tf import ShardVariables
from psfleet.tf.own_session import OwnSession


class Snapshot:
    """The operations that copy the variables of a shard, and read and release the copy.

    A queue that takes a variable's value shares its memory. The next update finds that the memory is shared and writes
    its result to new memory instead (`PrepareToUpdateVariable` in training_op_helpers.h). So taking a snapshot costs
    one call, the next update copies the shard, and the memory of the copy is free again once it is read.

    Args of the constructor:
        segments: All of the shard.
        slots: The optimizer's slots by name, one variable for each bucket.
        scalars: The optimizer's variables other than slots, by name.
    """

    def __init__(
        self,
        segments: Sequence[ShardVariables],
        slots: Mapping[str, Sequence[tf.Variable]],
        scalars: Mapping[str, tf.Variable],
    ) -> None:
        variables = segments[0]
        copied = {
            "buckets": [bucket for segment in segments for bucket in segment.buckets],
            "slots": {name: list(parts) for name, parts in slots.items()},
            "scalars": dict(scalars),
            "state": variables.state,
        }
        changed = tf.nest.flatten(copied)
        with v1.container(variables.container):
            queue = tf.queue.FIFOQueue(
                1,
                [variable.dtype for variable in changed],
                shapes=[variable.shape for variable in changed],
                shared_name=f"{variables.global_step.name}/snapshot",
            )
        self._copy = queue.enqueue(
            [tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype) for variable in changed]
        )
        values = queue.dequeue()
        self._reads: dict[str, Any] = tf.nest.pack_sequence_as(copied, values if len(changed) > 1 else [values])
        # Never changes, and needs no copy.
        self._reads["frozen"] = variables.frozen.read_value()
        self._take: Callable[[], object] | None = None

    def start(self, session: OwnSession) -> None:
        """Prepares `take`, for which workers wait."""
        self._take = session.prepared(self._copy)

    def take(self) -> None:
        """Copies the shard, once the copy before was read. The thread that applies the updates must call it."""
        assert self._take is not None, "start() comes first"
        self._take()

    def read(self, session: v1.Session) -> ShardContent:
        """The values of the copy, which it releases; from any thread."""
        values = session.run(self._reads)
        return ShardContent(
            parameters=_joined(values["buckets"]),
            slots={name: _joined(parts) for name, parts in values["slots"].items()},
            scalars=values["scalars"],
            state=values["state"],
            frozen=values["frozen"],
        )


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
