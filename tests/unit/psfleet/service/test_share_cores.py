"""Threads for each process where the job leaves it open."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.job.job import Job, parse_job
from psfleet.service.cpu import share_cores


def job(**device: Any) -> Job:
    return parse_job(
        {
            "name": "tiny",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 10, "batch_size": 4},
            "device": device,
        }
    )


@pytest.mark.parametrize(
    ("num_cores", "num_processes", "num_threads"), [(2, 4, 1), (16, 4, 4), (15, 4, 3), (2.5, 1, 2), (0.5, 1, 1)]
)
def test_processes_share_the_cores_and_each_gets_one_thread_at_least(
    num_cores: float, num_processes: int, num_threads: int
) -> None:
    device = share_cores(job(), num_cores, num_processes).device
    assert (device.inter_op_threads, device.intra_op_threads) == (num_threads, num_threads)


def test_what_the_job_says_about_threads_stays() -> None:
    device = share_cores(job(inter_op_threads=0, intra_op_threads=7, soft_placement=False), 16, 2).device
    assert (device.inter_op_threads, device.intra_op_threads, device.soft_placement) == (0, 7, False)
