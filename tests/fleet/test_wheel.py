"""The wheel is complete: installed where the repository cannot be imported, it trains a job.

Here the launcher starts a fork server of its own, as it does for users; in most fleet tests it uses the test session's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from psfleet.report.schema import Report

ROOT = Path(__file__).parents[2]
PACKAGES = ("psfleet", "ps_service", "worker_service")
OTHER_DATA = ("psfleet/report/report.html.j2", "psfleet/control/control.proto", "psfleet/control/control_pb2.pyi")

JOB = """\
name: tiny
program: program:build
fleet: {ps: 1, workers: 1}
optimizer: {name: sgd, learning_rate: 0.1}
train: {steps: 4, batch_size: 8}
"""

PROGRAM = '''\
"""One dense layer on points of the plane, which come from a pool of processes: it must work below a forked worker."""

import multiprocessing

import keras
import numpy as np
import psfleet
import rows
import tensorflow as tf


def points(shard_index: int, num_shards: int) -> tf.data.Dataset:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        x = np.array(pool.map(rows.point, range(64)), np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shard(num_shards, shard_index)


def build() -> psfleet.KerasProgram:
    return psfleet.KerasProgram(
        model=lambda: keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]),
        loss=keras.losses.MeanSquaredError(),
        train=points,
    )
'''


ROWS = """
def point(number):
    return [number / 64, 1 - number / 64]
"""
"""A module of its own: the processes of the pool import it, and not TensorFlow with the program."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built without a network from a copy, because setuptools writes beside the source."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # What `pip wheel` calls, without pip's own processes.
    run(sys.executable, "-c", "from setuptools import build_meta; build_meta.build_wheel('.')", cwd=source)
    (built,) = source.glob("psfleet-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and with the libraries of this one but not its psfleet.

    A line in a `.pth` file adds a folder to `sys.path` without reading the `.pth` files in it, which is where this
    environment has its editable install.
    """
    environment = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=wheel.parent)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(environment / "bin" / "python"), "-m", "pip"]
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", str(wheel), cwd=wheel.parent)
    return environment / "bin"


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    source = wheel.parent
    expected = {
        str(path.relative_to(source)) for name in PACKAGES for path in (source / name).rglob("*") if path.is_file()
    }
    assert {*OTHER_DATA, *(f"{package}/py.typed" for package in PACKAGES)} <= expected
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


@pytest.mark.extended
def test_the_wheel_trains_a_job_where_the_repository_cannot_be_imported(installed: Path, tmp_path: Path) -> None:
    program = f"import {', '.join(PACKAGES)}; print({', '.join(f'{package}.__file__' for package in PACKAGES)})"
    for found in run(str(installed / "python"), "-c", program, cwd=tmp_path).split():
        assert Path(found).is_relative_to(installed.parent), found
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "rows.py").write_text(ROWS)
    run(str(installed / "psfleet"), "train", "job.yaml", cwd=tmp_path)
    assert Report.read(tmp_path / "runs" / "tiny").final_step == 4
    assert (tmp_path / "runs" / "tiny" / "report.html").stat().st_size > 0


def run(*command: str, cwd: Path) -> str:
    """Runs a command to exit code 0, without the repository on its path; its standard output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
