"""Health of real processes, as the probe of containers sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.service_process import END_SECS, START_SECS, running

from psfleet import errors
from psfleet.addresses import Address
from psfleet.control.server import serving
from psfleet.job.job import parse_job
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses

JOB = parse_job(
    {
        "name": "alone",
        "program": "p:build",
        "optimizer": {"name": "sgd", "learning_rate": 1},
        "train": {"steps": 1, "batch_size": 1},
    }
)


def test_a_worker_is_healthy_while_it_waits_for_a_ps_that_is_not_there(tmp_path: Path) -> None:
    address, nobody = free_addresses(2)
    assert probe(address)[0] == 1
    assert f"no response on port {address.port + 1}" in probe(address)[1]
    (tmp_path / "job.json").write_text(JOB.model_dump_json())
    variables = {"RUN": "run", "PS": nobody.data, "INDEX": "0", "JOB": str(tmp_path / "job.json")}
    with running("worker", tmp_path, address, **variables) as service:
        service.serving()
        assert probe(address) == (0, "")
        service.process.send_signal(signal.SIGTERM)
        assert service.exit_code(END_SECS) == errors.SIGNAL_BASE + signal.SIGTERM
    assert probe(address)[0] == 1


def test_a_process_that_was_asked_to_stop_answers_not_serving_while_it_saves() -> None:
    (address,) = free_addresses(1)
    stopping = threading.Event()
    with serving(address, stopping=stopping), grpc.insecure_channel(address.control) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check

        def status() -> int:
            return check(health_pb2.HealthCheckRequest(), timeout=END_SECS).status

        assert status() == health_pb2.HealthCheckResponse.SERVING
        stopping.set()
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        wait_until(status, END_SECS, "another health", done=lambda seen: seen == not_serving)
        assert probe(address) == (1, f"port {address.port + 1} reports NOT_SERVING\n")


def probe(address: Address) -> tuple[int, str]:
    """Exit code and message of `python -m psfleet.service.health` in the environment of a service."""
    done = subprocess.run(
        [sys.executable, "-m", "psfleet.service.health"],
        env={**os.environ, "PSFLEET_ADDRESS": address.data},
        capture_output=True,
        text=True,
        timeout=START_SECS,
        check=False,
    )
    return done.returncode, done.stderr
