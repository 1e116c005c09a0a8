"""Cores and threads under a container's CPU limit, by made-up files of both versions of cgroups."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from psfleet.job.sections import Device
from psfleet.service import settings
from psfleet.service.cpu import cpu_limit, num_cores, num_threads
from psfleet.tf import server

V2 = "cpu.max"
V1_QUOTA, V1_PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def cgroup(folder: Path, files: dict[str, str]) -> Path:
    """A folder as a container finds it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def test_without_an_affinity_all_cpus_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no sched_getaffinity."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert (num_cores(tmp_path), num_threads(tmp_path)) == (5, 0)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({V2: "250000 100000"}, 2.5),
        ({V2: "max 100000"}, math.inf),
        ({V1_QUOTA: "50000", V1_PERIOD: "100000"}, 0.5),
        ({V1_QUOTA: "-1", V1_PERIOD: "100000"}, math.inf),
        ({V2: "300000 100000", V1_QUOTA: "100000", V1_PERIOD: "100000"}, 3.0),
        ({V2: "", V1_QUOTA: "100000"}, math.inf),
        ({}, math.inf),
    ],
    ids=["v2", "v2 without", "v1", "v1 without", "both", "torn", "no cgroup"],
)
def test_a_limit_is_read_as_the_kernel_writes_it(tmp_path: Path, files: dict[str, str], limit: float) -> None:
    assert cpu_limit(cgroup(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("quota", "cores", "threads"),
    [("50000", 0.5, 1), ("250000", 2.5, 3), ("700000", 7.0, 7), ("800000", 8, 0), ("1600000", 8, 0), ("max", 8, 0)],
)
def test_threads_fit_a_limit_below_the_cores_and_are_tensorflows_own_otherwise(
    tmp_path: Path, quota: str, cores: float, threads: int
) -> None:
    folder = cgroup(tmp_path, {V2: f"{quota} 100000"})
    assert (num_cores(folder), num_threads(folder)) == (cores, threads)


@pytest.mark.parametrize(
    ("device", "intra", "inter"),
    [
        (None, 3, 3),
        (Device(), 3, 3),
        (Device(intra_op_threads=1), 1, 3),
        (Device(intra_op_threads=0, inter_op_threads=7), 0, 7),
    ],
    ids=["no job", "left open", "one of both", "both"],
)
def test_a_server_has_the_threads_that_fit_where_the_job_leaves_them_open(
    monkeypatch: pytest.MonkeyPatch, device: Device | None, intra: int, inter: int
) -> None:
    monkeypatch.setattr(server, "num_threads", lambda: 3)
    config = server.session_config(device)
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (intra, inter)
    monkeypatch.setattr(server, "num_threads", lambda: 5)
    monkeypatch.setenv(settings.THREADS, "3")
    config = server.session_config(device)
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (intra, inter)
