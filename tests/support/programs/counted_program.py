"""A model that counts: minus weight i is how often it was trained on example i.

The learning rate has to be the batch size times the number of workers.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from loaded_program import EXAMPLES, paced

import psfleet


def build(gates: str = "", step_secs: float = 0.0) -> psfleet.GraphProgram:
    """Arguments as in `loaded_program`."""

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(EXAMPLES).shard(num_shards, shard_index)
        return paced(numbers.map(lambda number: (number, tf.zeros([1]))), f"{gates}/pace", step_secs)

    return psfleet.GraphProgram(loss=_loss, train=train)


def _loss(batch: Any) -> tf.Tensor:
    numbers, _ = batch
    weights = tf.compat.v1.get_variable("w", [EXAMPLES], initializer=tf.compat.v1.zeros_initializer())
    return tf.reduce_mean(tf.gather(weights, numbers))
