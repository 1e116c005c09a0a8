"""Workers compute with oneDNN, as users have them: tests/conftest.py turns it off for all other tests."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tiny_job import END_SECS

from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
JOB = """\
name: stripes
program: program:build
fleet: {ps: 1, workers: 1}
optimizer: {name: sgd, learning_rate: 0.1}
train: {steps: 30, batch_size: 16, seed: 7}
"""
PROGRAM = """\
import keras
import numpy as np
import psfleet
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

images = np.random.default_rng(7).normal(size=[64, 8, 8, 2]).astype(np.float32)
stripes = (images[:, ::2].sum((1, 2, 3)) > images[:, 1::2].sum((1, 2, 3))).astype(np.int32)

def model():
    layers = keras.layers
    return keras.Sequential([
        keras.Input([8, 8, 2]), layers.Conv2D(4, 3, activation="relu", padding="same"), layers.BatchNormalization(),
        layers.MaxPooling2D(2), layers.Conv2D(4, 3), layers.AveragePooling2D(2), layers.Flatten(), layers.Dense(2),
    ])

def build():
    print("oneDNN", _pywrap_util_port.IsMklEnabled())
    return psfleet.KerasProgram(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        train=lambda index, shards: tf.data.Dataset.from_tensor_slices((images, stripes)).shard(shards, index),
    )
"""


def trained(folder: Path, is_on: bool, *flags: str) -> dict[str, np.ndarray]:
    """The weights after a run whose launcher has the variable or not, and so starts a fork server of its own."""
    (folder / "job.yaml").write_text(JOB)
    (folder / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "psfleet", "train", "job.yaml", "--out", "out", *flags],
        cwd=folder,
        env=environment if is_on else {**environment, VARIABLE: "0"},
        capture_output=True,
        text=True,
        timeout=END_SECS,
        check=False,
    )
    assert done.returncode == 0, done
    assert f"oneDNN {is_on}" in (folder / "out" / "logs" / "worker-0.log").read_text().splitlines()
    newest = store.newest(folder / "out" / "checkpoints")
    assert newest is not None
    return dict(read_tensors(newest))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The weights without oneDNN."""
    return trained(tmp_path_factory.mktemp("without"), False)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="psfleet turns oneDNN on for x86-64")
@pytest.mark.parametrize("flags", [[], ["--set", "fleet.colocate=true"]], ids=["direct session", "session on a server"])
def test_convolutions_give_the_same_weights_as_without_onednn(
    expected: dict[str, np.ndarray], flags: list[str], tmp_path: Path
) -> None:
    found = trained(tmp_path, True, *flags)
    assert found.keys() == expected.keys()
    assert all(value.any() for value in expected.values()), "biases begin as zeros"
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)
