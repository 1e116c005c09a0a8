"""A run folder with a checkpoint of a small program whose model can be exported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from psfleet.checkpoint.parts import ShardContent
from psfleet.checkpoint.whole import write_whole
from psfleet.job.program_files import PROGRAM_DIGEST
from psfleet.layout import Layout, TensorSpec

PROGRAM = """
import keras
import numpy as np
import tensorflow as tf
from psfleet import GraphProgram, KerasProgram

def keras_program():
    return KerasProgram(
        model=lambda: keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(3, name="dense")], name="net"),
        loss="mse", train=lambda index, count: tf.data.Dataset.from_tensor_slices((np.ones([4, 2]), np.ones([4, 3]))),
    )

class Determinant(keras.layers.Layer):
    def call(self, x):
        return tf.linalg.logdet(x[:, :, None] * x[:, None, :] + tf.eye(3))[:, None]

def unconvertible_program():
    layers = [keras.layers.Input([2]), keras.layers.Dense(3, name="dense"), Determinant()]
    return KerasProgram(
        model=lambda: keras.Sequential(layers, name="net"), loss="mse",
        train=lambda index, count: tf.data.Dataset.from_tensor_slices((np.ones([4, 2]), np.ones([4, 1]))),
    )

def bfloat16_program():
    layers = [keras.layers.Input([2]), keras.layers.Dense(3, name="dense", dtype="mixed_bfloat16")]
    return KerasProgram(model=lambda: keras.Sequential(layers, name="net"), loss="mse", train=keras_program().train)

def evaluated_program():
    x = np.random.default_rng(1).normal(size=[64, 2]).astype(np.float32)
    y = x @ np.arange(6, dtype=np.float32).reshape(2, 3) + np.array([1, 2, 3], np.float32)
    data = lambda *shard: tf.data.Dataset.from_tensor_slices((x, y))
    return KerasProgram(model=keras_program().model, loss="mse", metrics=["mae"], train=data, evaluate=data)

def two_inputs_program():
    def model():
        a, b = keras.Input([2], name="a"), keras.Input([3], dtype="int32", name="b")
        added = keras.layers.Dense(3, name="dense")(a) + keras.ops.cast(b, "float32")
        return keras.Model([a, b], added, name="net")

    evaluated = evaluated_program().evaluate
    ones = np.ones([3], np.int64)
    data = lambda *shard: evaluated().map(lambda x, y: ({"b": ones, "a": x}, y + 1))
    return KerasProgram(model=model, loss="mse", metrics=["mae"], train=data, evaluate=data)

def named_output_program(is_dict=False):
    def model():
        x = keras.Input([2])
        y = keras.layers.Dense(3, name="dense")(x)
        score = keras.layers.Identity(name="score")(y)
        return keras.Model(x, {"score": score} if is_dict else score, name="net")

    evaluated = evaluated_program().evaluate
    data = lambda *shard: evaluated().map(lambda x, y: (x, {"score": y}) if is_dict else (x, y))
    return KerasProgram(model=model, loss={"score": "mse"}, metrics={"score": ["mae"]}, train=data, evaluate=data)

def dict_output_program():
    return named_output_program(is_dict=True)

class Joined(keras.layers.Layer):
    def call(self, x):
        return x["a"] + x["b"]

def joining_program():
    evaluated = evaluated_program().evaluate
    data = lambda *shard: evaluated().map(lambda x, y: ({"a": x, "b": tf.zeros_like(x)}, y))
    layers = [Joined(), keras.layers.Dense(3, name="dense")]
    return KerasProgram(
        model=lambda: keras.Sequential(layers, name="net"), loss="mse", metrics=["mae"], train=data, evaluate=data
    )

class Scaled(keras.Model):
    def __init__(self):
        super().__init__(name="net")
        self.dense = keras.layers.Dense(3, name="dense")

    def call(self, x):
        return self.dense(x)

def subclassed_program():
    given = evaluated_program()
    return KerasProgram(model=Scaled, loss="mse", metrics=["mae"], train=given.train, evaluate=given.evaluate)

def graph_program(predict=None):
    train = lambda *shard: tf.data.Dataset.from_tensor_slices(({"x": X, "scale": np.float32([1, 2, 3])}, [0, 0, 0]))
    return GraphProgram(loss=lambda batch: None, train=train, predict=predict)

X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)

def predicting_program():
    return graph_program(predict)

def predict(features):
    with tf.compat.v1.variable_scope("net/dense"):
        get = tf.compat.v1.get_variable
        logits = features["x"] @ get("kernel", [2, 3]) + get("bias", [3])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1, 2], [7, 8, 9]), 0)
    label = table.lookup(tf.argmax(logits, 1, tf.int32))
    return {"logits": logits * features["scale"][:, None], "label": label}
"""
KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array([1, 2, 3], np.float32)
X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def trained(
    folder: Path,
    callable_name: str = "keras_program",
    deadlines: Mapping[str, float] = MappingProxyType({}),
    scope: str = "net/",
) -> Path:
    """A run folder with a checkpoint of step 0.

    Args:
        scope: Begins the names of the variables.
    """
    (folder / "versioned_program.py").write_text(PROGRAM)
    return with_checkpoint(folder, 0, KERNEL, BIAS, callable_name, deadlines, scope)


def with_checkpoint(
    folder: Path,
    step: int,
    kernel: np.ndarray,
    bias: np.ndarray,
    callable_name: str = "keras_program",
    deadlines: Mapping[str, float] = MappingProxyType({}),
    scope: str = "net/",
    program_digest: str | None = None,
    **sections: Any,
) -> Path:
    """Adds a checkpoint of a step to a run folder that has the program; `sections` are further ones of its job."""
    job = {
        "name": "net",
        "program": f"versioned_program:{callable_name}",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 1, "batch_size": 1},
        "deadlines": dict(deadlines),
        **sections,
    }
    tensors = {f"{scope}dense/kernel": kernel, f"{scope}dense/bias": bias}
    specs = [TensorSpec(name, value.shape, "float32") for name, value in tensors.items()]
    extra: dict[str, Any] = {"job": job, "program_folder": str(folder)}
    if program_digest is not None:
        extra[PROGRAM_DIGEST] = program_digest
    layout = Layout.plan(specs, [], [], 1, 4096)
    write_whole(
        folder / "checkpoints",
        layout,
        tensors,
        lambda _, vectors: ShardContent(slots={}, scalars={}, **vectors),
        run="r",
        step=step,
        generation=1,
        optimizer="sgd",
        slots=(),
        extra=extra,
    )
    return folder
