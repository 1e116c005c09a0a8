"""A job of one ps and one worker on a graph program of ten lines, which tests extend and break."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from psfleet.job.job import Job, parse_job
from psfleet.service.logs import parse_line
from support import commands

END_SECS = 90.0
"""Until a fleet that cannot train has ended; about 5 on an idle machine."""

JOB = """\
name: tiny
program: program:build
fleet: {ps: 1, workers: 1}
optimizer: {name: sgd, learning_rate: 0.1}
train: {steps: 20, batch_size: 4}
device: {intra_op_threads: 1}
"""
PRELUDE = """\
import numpy as np
import tensorflow as tf
import psfleet

x = np.arange(64, dtype=np.float32).reshape(32, 2) / 64

def loss(batch):
    return tf.reduce_mean(tf.square(tf.linalg.matvec(batch, tf.compat.v1.get_variable("w", [2]))))

def data(shard, shards):
    return tf.data.Dataset.from_tensor_slices(x).shard(shards, shard)

def build(**options):
    return psfleet.GraphProgram(**{"loss": loss, "train": data, **options})

"""


def job(**sections: Any) -> Job:
    """The job as it is parsed, with these sections in place of its own."""
    return parse_job({**yaml.safe_load(JOB), **sections})


def psfleet(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder."""
    return commands.psfleet(folder, *arguments, timeout_secs=END_SECS)


def entries(log: Path) -> list[dict[str, Any]]:
    """A process's log."""
    return [entry for entry in map(parse_line, log.read_bytes().splitlines()) if entry is not None]
