"""The learning rate that a plateau schedule reduces, as a variable on a ps."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.job import Job
from psfleet.job.learning_rate import reduced_rate
from psfleet.job.optimizer import Plateau
from psfleet.tf import ShardVariables


class BaseRate:
    """The learning rate of a job before the warm-up's factor; only a plateau schedule has a variable for it.

    Args of the constructor:
        variables: Of the shard, in the default graph.
    """

    def __init__(self, job: Job, variables: ShardVariables) -> None:
        self._job = job
        self._is_variable = isinstance(job.schedule, Plateau)
        if self._is_variable:
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32,
                shape=[],
                container=variables.container,
                shared_name=f"{variables.global_step.name}/base_rate",
            )
            self._value = v1.placeholder(tf.float32, [])
            self._assign = tf.raw_ops.AssignVariableOp(resource=self._handle, value=self._value)

    def read(self) -> tf.Tensor | None:
        """The rate, float32 scalar; None: it is that of the job at all times."""
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.float32) if self._is_variable else None

    def start(self, session: v1.Session) -> None:
        """Sets the rate to that without reductions, in the session that all calls of `reduce` use."""
        self._session = session
        self.reduce(0)

    def reduce(self, number: int) -> None:
        """Sets the rate to that after a number of reductions; must not be called during an update."""
        if self._is_variable:
            self._session.run(self._assign, {self._value: np.float32(reduced_rate(self._job.rule, number))})
