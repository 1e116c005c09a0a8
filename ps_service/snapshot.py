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

    Assigning a variable's value to another variable shares its memory. The next update finds that the memory is shared
    and writes its result to new memory instead (`PrepareToUpdateVariable` in training_op_helpers.h). So taking a
    snapshot costs one call, the next update copies the shard, and the memory of the copy is free again once it is read.

    Args of the constructor:
        slots: The optimizer's slots by name, one variable for each bucket.
        scalars: The optimizer's variables other than slots, by name.
    """

    def __init__(
        self, variables: ShardVariables, slots: Mapping[str, Sequence[tf.Variable]], scalars: Mapping[str, tf.Variable]
    ) -> None:
        self._container = variables.container
        self._copies: list[tf.Operation] = []
        self._handles: list[tf.Tensor] = []
        self._reads: dict[str, Any] = {
            "buckets": [self._read(variable) for variable in variables.buckets],
            "slots": {name: [self._read(part) for part in parts] for name, parts in slots.items()},
            "scalars": {name: self._read(variable) for name, variable in scalars.items()},
            "state": self._read(variables.state),
            # Never changes, and needs no copy.
            "frozen": variables.frozen.read_value(),
        }
        self._copy = tf.group(*self._copies)
        self._take: Callable[[], object] | None = None
        with tf.control_dependencies(tf.nest.flatten(self._reads)):
            self._release = tf.group(
                *[tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True) for handle in self._handles]
            )

    def start(self, session: OwnSession) -> None:
        """Prepares `take`, for which workers wait."""
        self._take = session.prepared(self._copy)

    def take(self) -> None:
        """Copies the shard. The thread that applies the updates must call it, after the copy before was read."""
        assert self._take is not None, "start() comes first"
        self._take()

    def read(self, session: v1.Session) -> ShardContent:
        """The values of the copy, which it releases; from any thread."""
        values, _ = session.run((self._reads, self._release))
        return ShardContent(
            parameters=_joined(values["buckets"]),
            slots={name: _joined(parts) for name, parts in values["slots"].items()},
            scalars=values["scalars"],
            state=values["state"],
            frozen=values["frozen"],
        )

    def _read(self, variable: tf.Variable) -> tf.Tensor:
        """The value of a variable's copy."""
        handle = tf.raw_ops.VarHandleOp(
            dtype=variable.dtype,
            shape=variable.shape,
            container=self._container,
            shared_name=f"{variable.name}/snapshot",
        )
        self._handles.append(handle)
        self._copies.append(tf.raw_ops.AssignVariableOp(resource=handle, value=variable.read_value()))
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
