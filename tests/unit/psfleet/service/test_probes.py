"""A SIGTERM of the kubelet: because the pod is deleted, or because its health probes fail."""

from __future__ import annotations

import os
import signal

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.clock import Clock

from psfleet.control.server import serving
from psfleet.errors import BadJobError, LostPeerError, PsfleetError
from psfleet.processes.ports import free_addresses
from psfleet.service.probes import PROBE_FAILURES, PROBE_LIMIT_SECS, PROBE_SECS, ProbeRecord
from psfleet.service.process import Stop

LISTEN_SECS = 10.0
START_SECS = 180.0


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def stop(stop: Stop, clock: Clock) -> Stop:
    """Of a process in Kubernetes, with a clock of its own for probes."""
    stop.leaves_on_sigterm = True
    stop.start_secs = START_SECS
    stop.probes = ProbeRecord(clock)
    return stop


def ended_by(stop: Stop, number: signal.Signals) -> PsfleetError:
    """The error with which a process ends at a signal."""
    os.kill(os.getpid(), number)
    assert stop.event.wait(LISTEN_SECS), f"no {number.name} in {LISTEN_SECS} s"
    return stop.cause_of(stop.error())


def test_a_pod_that_is_deleted_between_two_probes_is_stopped(stop: Stop, clock: Clock) -> None:
    clock.now += 60
    stop.probes.note_answer()
    clock.now += PROBE_SECS + PROBE_LIMIT_SECS
    assert ended_by(stop, signal.SIGTERM).exit_code == 128 + signal.SIGTERM


def test_a_process_whose_probes_had_no_answer_failed(stop: Stop, clock: Clock) -> None:
    stop.probes.note_answer()
    clock.now += PROBE_SECS * PROBE_FAILURES - PROBE_LIMIT_SECS
    error = ended_by(stop, signal.SIGTERM)
    clock.now += 1000
    assert (type(error), error.exit_code) == (LostPeerError, 75)
    assert str(error) == "stopped by SIGTERM, after 45 s in which no health probe was answered: its probes failed"


@pytest.mark.parametrize(("secs", "code"), [(START_SECS / 2, 143), (START_SECS, 75)])
def test_a_process_that_never_answers_failed_once_the_startup_probe_gave_up(
    stop: Stop, clock: Clock, secs: float, code: int
) -> None:
    clock.now += secs
    assert ended_by(stop, signal.SIGTERM).exit_code == code


def test_an_interrupt_of_a_user_is_no_failure_and_another_error_stays(stop: Stop, clock: Clock) -> None:
    clock.now += 10 * START_SECS
    assert ended_by(stop, signal.SIGINT).exit_code == 130
    assert stop.cause_of(BadJobError("x")).exit_code == 78


def test_without_kubernetes_sigterm_is_always_a_request(stop: Stop, clock: Clock) -> None:
    stop.leaves_on_sigterm = False
    clock.now += 10 * START_SECS
    assert ended_by(stop, signal.SIGTERM).exit_code == 143


def test_an_answered_health_check_is_noted() -> None:
    seen: list[str] = []
    (own,) = free_addresses(1)
    with (
        serving(own, answered=lambda: seen.append("answered")),
        grpc.insecure_channel(f"127.0.0.1:{own.control_port}") as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        assert (
            check(health_pb2.HealthCheckRequest(), timeout=LISTEN_SECS).status == health_pb2.HealthCheckResponse.SERVING
        )
        with pytest.raises(grpc.RpcError):
            check(health_pb2.HealthCheckRequest(service="unknown"), timeout=LISTEN_SECS)
    assert seen == ["answered"]
