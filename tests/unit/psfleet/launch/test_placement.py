"""The table of operations by device, from TensorFlow's own lines."""

from __future__ import annotations

from collections import Counter

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.job.sections import Device
from psfleet.launch.placement import Placement, placements
from psfleet.tf.server import session_config

CPU, GPU = "/job:worker_1/task:1/device:CPU:0", "/job:worker_1/task:1/device:GPU:0"


def line(name: str, kind: str, device: str) -> str:
    return f"{name}: ({kind}): {device.replace('/task', '/replica:0/task')}"


def test_operations_are_counted_by_process_device_and_kind() -> None:
    log = [
        ("worker-1", line("dense/MatMul", "MatMul", GPU)),
        ("worker-1", line("dense_1/MatMul", "MatMul", GPU)),
        ("worker-1", line("dense/MatMul", "MatMul", GPU)),
        ("worker-1", '{"message": "dense/MatMul: (MatMul): /job"}'),
        ("worker-1", line("step", "Placeholder", CPU)),
        ("ps-0", line("step", "Placeholder", "/job:boot/task:0/device:CPU:0")),
    ]
    assert placements(log) == [
        Placement("ps-0", "/job:boot/task:0/device:CPU:0", Counter(Placeholder=1)),
        Placement("worker-1", CPU, Counter(Placeholder=1)),
        Placement("worker-1", GPU, Counter(MatMul=2)),
    ]


def test_tensorflow_logs_placement_as_it_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    config = session_config(Device(log_placement=True))
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        session.run(tf.add(v1.placeholder_with_default(1.0, []), 2.0, name="sum"))
    said = "".join(capfd.readouterr())
    (row,) = placements(("chief", each) for each in said.splitlines())
    assert (row.device, row.operations["AddV2"]) == ("/job:localhost/task:0/device:CPU:0", 1)


def test_a_log_without_placement_has_no_rows() -> None:
    assert placements([("chief", "a line"), ("chief", "w: (a, b): /device")]) == []
