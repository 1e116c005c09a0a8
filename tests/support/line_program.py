"""The text of a script that defines a training program, y = 3 x with one weight, and its job."""

from __future__ import annotations

DEFINITIONS = """
import numpy as np
import psfleet

TRUE = 3.0

def points(number):
    import tensorflow as tf
    x = np.linspace(-1, 1, number, dtype=np.float32)
    return tf.data.Dataset.from_tensor_slices((x, TRUE * x))

def loss(batch):
    import tensorflow as tf
    x, y = batch
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.zeros_initializer())
    return tf.reduce_mean((weight * x - y) ** 2)

def build(number=400):
    return psfleet.GraphProgram(loss=loss, train=lambda i, n: points(number).shard(n, i), evaluate=lambda: points(9))
"""


def job_line(name: str, steps: int) -> str:
    """Assigns `job`: one ps and one worker."""
    job = {
        "name": name,
        "fleet": {"ps": 1, "workers": 1},
        "optimizer": {"name": "sgd", "learning_rate": 0.5},
        "train": {"steps": steps, "batch_size": 10},
        "device": {"intra_op_threads": 1},
    }
    return f"job = {job!r}\n"
