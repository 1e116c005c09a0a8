"""The job's device options in sessions of TensorFlow."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.sections import Device
from psfleet.tf.server import session_config


def doubled_on_an_absent_gpu(device: Device) -> float:
    """What a session with these options computes for an operation that is pinned to a GPU that no machine has."""
    with tf.Graph().as_default() as graph, tf.device("/gpu:99"):
        doubled = 2 * tf.constant(3.0)
    with v1.Session(graph=graph, config=session_config(device)) as session:
        return float(session.run(doubled))


def test_with_soft_placement_the_cpu_takes_what_no_device_can() -> None:
    assert doubled_on_an_absent_gpu(Device()) == 6
    with pytest.raises(tf.errors.InvalidArgumentError, match="GPU:99"):
        doubled_on_an_absent_gpu(Device(soft_placement=False))


def test_memory_options_of_gpus_are_those_of_the_job() -> None:
    assert not session_config(Device()).gpu_options.allow_growth
    options = session_config(Device(gpu_memory_fraction=0.25, gpu_memory_growth=True)).gpu_options
    assert (options.per_process_gpu_memory_fraction, options.allow_growth) == (0.25, True)
