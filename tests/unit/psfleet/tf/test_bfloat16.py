"""Convolutions in bfloat16 run in a session on a server, also where oneDNN has them (CPUs with AVX-512 BF16)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from psfleet.tf.server import fuse_what_runs

SECS = 120.0
SCRIPT = """
import os
import numpy as np, tensorflow as tf, tensorflow.compat.v1 as v1
from psfleet.tf.server import fuse_what_runs
with tf.Graph().as_default() as graph:
    x = tf.cast(v1.placeholder_with_default(np.ones([1, 8, 8, 4], np.float32), [None, 8, 8, 4]), tf.bfloat16)
    y = tf.nn.conv2d(x, tf.ones([3, 3, 4, 4], tf.bfloat16), 1, "SAME")
    y = tf.cast(tf.nn.relu(tf.nn.bias_add(y, tf.ones([4], tf.bfloat16))), tf.float32)
config = v1.ConfigProto()
fuse_what_runs(config, graph)
with v1.Session(v1.train.Server.create_local_server().target, graph=graph, config=config) as session:
    print("sum", session.run(y).sum(), flush=True)
# The server of a process is never stopped.
os._exit(0)
"""


def test_a_convolution_in_bfloat16_runs_on_a_server() -> None:
    # oneDNN is off in the processes of tests.
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": str(Path(__file__).parents[4])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=SECS, check=False
    )
    assert "sum 8000.0" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("dtype", "expected"), [(tf.bfloat16, RewriterConfig.OFF), (tf.float32, RewriterConfig.DEFAULT)]
)
def test_other_graphs_are_fused(dtype: tf.DType, expected: int) -> None:
    with tf.Graph().as_default() as graph:
        tf.nn.conv2d(tf.ones([1, 8, 8, 4], dtype), tf.ones([3, 3, 4, 4], dtype), 1, "SAME")
    config = v1.ConfigProto()
    fuse_what_runs(config, graph)
    assert config.graph_options.rewrite_options.remapping == expected
