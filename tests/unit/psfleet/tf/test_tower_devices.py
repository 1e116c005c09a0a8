"""The devices over which a worker divides its batch; this machine needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.tf.towers import tower_devices


def job(batch_size: int = 12, **device: Any) -> Job:
    return parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 1, "batch_size": batch_size},
            "device": device,
        }
    )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GPUs that TensorFlow finds: none yet."""
    gpus: list[str] = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else ["CPU"])
    return gpus


GPUS, CPUS = ([f"/device:{kind}:{at}" for at in range(4)] for kind in ("GPU", "CPU"))


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ({}, 4, []),
        ({"replicas": "auto"}, 0, []),
        ({"replicas": "auto"}, 1, []),
        ({"replicas": "auto"}, 3, GPUS[:3]),
        ({"replicas": 2}, 4, GPUS[:2]),
        ({"replicas": "auto", "virtual_cpus": 2}, 0, CPUS[:2]),
        ({"replicas": 3, "virtual_cpus": 4}, 4, CPUS[:3]),
        ({"virtual_cpus": 4}, 0, []),
    ],
)
def test_towers_are_on_gpus_or_on_virtual_cpus(
    device: dict[str, Any], gpus: int, expected: list[str], found: list[str]
) -> None:
    found += GPUS[:gpus]
    assert list(tower_devices(job(**device), 0)) == expected


@pytest.mark.parametrize(("gpus", "least"), [(0, 1), (1, 1), (3, 3)])
def test_more_towers_than_devices_are_refused(gpus: int, least: int, found: list[str]) -> None:
    found += GPUS[:gpus]
    message = (
        f"device.replicas is 4, but worker 2 has 1 CPU and {gpus} GPUs: expected at most {least}, or device.virtual"
    )
    with pytest.raises(BadJobError, match=message):
        tower_devices(job(replicas=4), 2)


def test_a_batch_that_does_not_divide_over_all_gpus_is_refused(found: list[str]) -> None:
    found += GPUS[:3]
    message = (
        "train.batch_size is 8, expected a multiple of 3, the number of GPUs of worker 1, with device.replicas auto"
    )
    with pytest.raises(BadJobError, match=message):
        tower_devices(job(8, replicas="auto"), 1)
