"""Members that cannot be served, and members that compute at the same time."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from support import commands
from support.exported_run import BIAS, KERNEL, X, trained, with_checkpoint
from support.served import Served, is_alive, query, serving

from psfleet.inference.json_process import MAX_READ_BYTES
from psfleet.job.service_access import MODES
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses

END_SECS = 90.0
WAIT_SECS = 1.0
WAITING = f"""
import time

def waiting_program():
    def wait(x):
        time.sleep({WAIT_SECS})
        return x

    layers = [
        keras.layers.Input([2]), keras.layers.Dense(3, name="dense"),
        keras.layers.Lambda(lambda x: tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape)),
    ]
    return KerasProgram(model=lambda: keras.Sequential(layers, name="net"), loss="mse", train=keras_program().train)

def flat_program():
    layers = [
        keras.layers.Input([2]), keras.layers.Dense(3, name="dense"), keras.layers.Reshape([3, 1]),
    ]
    return KerasProgram(model=lambda: keras.Sequential(layers, name="net"), loss="mse", train=keras_program().train)
"""


def run_of(folder: Path, name: str, program: str) -> str:
    """A run of one of these programs."""
    (folder / name).mkdir()
    trained(folder / name)
    with (folder / name / "versioned_program.py").open("a") as file:
        file.write(WAITING)
    with_checkpoint(folder / name, 1, KERNEL, BIAS, program)
    return name


@pytest.mark.extended
@pytest.mark.parametrize(
    ("programs", "code", "message"),
    [
        (["graph_program"], 64, "member 0 failed: program 'versioned_program:graph_program' has no predictions"),
        (["keras_program", "flat_program"], 78, "expected those that the service has"),
    ],
)
def test_what_cannot_be_served_ends_the_service_with_its_reason(
    tmp_path: Path, programs: list[str], code: int, message: str
) -> None:
    runs = [run_of(tmp_path, f"run-{at}", program) for at, program in enumerate(programs)]
    (address,) = free_addresses(1)
    ports = ["--rest-port", str(address.port), "--grpc-port", str(address.control_port)]
    done = commands.psfleet(tmp_path, "serve", *runs, *ports, timeout_secs=END_SECS)
    assert (done.returncode, message in done.stderr.splitlines()[-1]) == (code, True), done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
def test_four_members_that_wait_take_as_long_as_one(tmp_path: Path, mode: str) -> None:
    secs = []
    for number in (1, 4):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs = [run_of(folder, f"run-{at}", "waiting_program") for at in range(number)]
        options = ["--members", mode, "--timeout-secs", "30"]
        with serving(folder, runs, *options) as service, service.client() as client:
            client.infer(X)
            began = time.monotonic()
            for _ in range(3):
                _, answer = client.infer(X)
                assert answer["parameters"]["members"] == f"{number} of {number}"
            secs.append(time.monotonic() - began)
    assert 4 * secs[0] / secs[1] >= 3.6, secs


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
def test_four_replicas_of_a_model_that_waits_have_four_times_the_throughput_of_one(tmp_path: Path, mode: str) -> None:
    secs = []
    for replicas in (1, 4):
        folder = tmp_path / str(replicas)
        folder.mkdir()
        run = run_of(folder, "run", "waiting_program")
        (metrics,) = free_addresses(1)
        options = ["--replicas", str(replicas), "--members", mode, "--timeout-secs", "30", "--max-batch-rows", "3"]
        with serving(folder, [run], *options, "--metrics-port", str(metrics.port)) as service:
            # In one graph they take queries once a session has them, some time after they have joined.
            service.await_ready(replicas, metrics.port)

            def ask(queries: int, service: Served = service) -> None:
                with service.client() as client:
                    for _ in range(queries):
                        assert client.infer(X)[1]["parameters"]["members"] == "1 of 1"

            with ThreadPoolExecutor(4) as pool:
                # The first one of each replica takes longer.
                list(pool.map(ask, [1] * replicas))
                began = time.monotonic()
                list(pool.map(ask, [2] * 4))
                secs.append(time.monotonic() - began)
    assert secs[0] / secs[1] >= 3.6, secs


@pytest.mark.extended
def test_the_process_that_reads_large_json_ends_with_its_front(tmp_path: Path) -> None:
    trained(tmp_path)
    large = query(np.ones([MAX_READ_BYTES // 8, 2]))
    with serving(tmp_path, ["."]) as service:
        readers = []
        for _ in range(2):
            with service.client() as client:
                status, _ = client.status_and_content("POST", "/v2/models/net/infer", large)
            assert status == 200
            (reader,) = children(service.pid("front"))
            readers.append(reader)
            front = service.pid("front")
            os.kill(front, signal.SIGKILL)
            wait_until(lambda reader=reader: not is_alive(reader), END_SECS, "the end of the process")
            wait_until(lambda front=front: service.pid("front") != front, END_SECS, "the next front")
            service.await_members("1 of 1")
    assert len(set(readers)) == 2


def children(pid: int) -> list[int]:
    """The process ids of the children of a process that run psfleet's process for JSON."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"psfleet.inference.json_process" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
