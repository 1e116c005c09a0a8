"""A service whose processes are frozen, killed and stopped: no query fails that a member can answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from support.asking import TIMEOUT_SECS, Asking, runs
from support.exported_run import X
from support.rows import first_rows
from support.served import READY_SECS, Served, freeze, is_alive, query, serving

from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from psfleet.job.service_access import BETWEEN_GRAPH, IN_GRAPH
from psfleet.polling import wait_until
from psfleet.serving.processes import SILENT_SECS


@pytest.fixture(scope="module", params=first_rows([BETWEEN_GRAPH, IN_GRAPH]))
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, runs(folder), "--members", request.param, "--timeout-secs", str(TIMEOUT_SECS)) as service:
        yield service


def test_a_frozen_member_costs_one_timeout_and_comes_back_when_it_continues(served: Served) -> None:
    pid = served.pid("member", 1)
    with Asking(served) as asking:
        asking.await_answer_of("2 of 2")
        freeze(pid)
        asking.await_answer_of("1 of 2")
        with served.client() as client:
            began = time.monotonic()
            client.infer(X)
            assert time.monotonic() - began < TIMEOUT_SECS / 2, "nobody waits for a member that is late"
        os.kill(pid, signal.SIGCONT)
        asking.await_answer_of("2 of 2")


@pytest.mark.extended
def test_a_member_that_stays_frozen_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path, runs(tmp_path), "--timeout-secs", str(TIMEOUT_SECS)) as service:
        before = service.pid("member", 1)
        with Asking(service) as asking:
            freeze(before)
            asking.await_answer_of("1 of 2")
            asking.await_answer_of("2 of 2")
        assert f"member 1 died (no sign of life for {SILENT_SECS:g} s)" in service.screen.read_text()
        assert not is_alive(before)


def test_without_any_member_queries_get_the_error_of_the_protocol(served: Served) -> None:
    pids = [served.pid("member", index) for index in (0, 1)]
    for pid in pids:
        freeze(pid)
    with served.client() as client, grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        for message in (f"no member of net has answered within {TIMEOUT_SECS:g} s", "no member of net is ready"):
            found = client.status_and_content("POST", "/v2/models/net/infer", query(X))
            assert found == (503, {"error": message})
        assert client.status_and_content("GET", "/v2/health/ready") == (503, {"ready": False})
        assert client.status_and_content("GET", "/v2/health/live")[0] == 200
        request = pb.ModelInferRequest(model_name="net", raw_input_contents=[X.tobytes()])
        request.inputs.add(name="input_0", datatype="FP32", shape=X.shape)
        with pytest.raises(grpc.RpcError) as caught:
            GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    served.await_members("2 of 2")


@pytest.mark.parametrize("mode", first_rows([IN_GRAPH, BETWEEN_GRAPH]))
def test_a_killed_member_and_a_killed_front_are_started_again_and_all_ends_with_the_command(
    tmp_path: Path, mode: str
) -> None:
    with serving(tmp_path, runs(tmp_path), "--members", mode, "--timeout-secs", str(TIMEOUT_SECS)) as service:
        with Asking(service) as asking:
            asking.await_answer_of("2 of 2")
            os.kill(service.pid("member", 1), signal.SIGKILL)
            asking.await_answer_of("1 of 2")
            asking.await_answer_of("2 of 2")
        deaths = [line for line in service.screen.read_text().splitlines() if line.startswith("member 1 died")]
        assert deaths == ["member 1 died (killed by SIGKILL) and is started again"], "the next one joins"
        before = pids_of(service)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, before)), READY_SECS, "the end of the members")
        wait_until(lambda: _has_answer(service), READY_SECS, "an answer of the next front")
        service.await_members("2 of 2")
        pids = pids_of(service)
        assert not set(pids) & set(before)
        service.process.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), READY_SECS, "the end of all processes")


def pids_of(service: Served) -> list[int]:
    """Of the front and both members."""
    return [service.pid("front"), *(service.pid("member", index) for index in (0, 1))]


def test_a_service_that_is_stopped_answers_what_it_was_asked_before(tmp_path: Path) -> None:
    with serving(tmp_path, runs(tmp_path), "--timeout-secs", "30") as service:
        pids = [service.pid("member", index) for index in (0, 1)]
        for pid in pids:
            freeze(pid)
        with service.client() as client:
            client.send("POST", "/v2/models/net/infer", query(X))
            # The front reads the requests of its connections in the order in which they came.
            assert _is_ready(service)
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not _is_ready(service), READY_SECS, "a front that is not ready")
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            status, _ = client.receive()
        code = wait_until(service.process.poll, READY_SECS, "the end", done=lambda code: code is not None)
        assert (status, code) == (200, 128 + signal.SIGTERM)
        assert not any(map(is_alive, pids))


def _is_ready(service: Served) -> bool:
    try:
        with service.client() as client:
            return client.status_and_content("GET", "/v2/health/ready")[0] == 200
    except OSError:
        return False


def _has_answer(service: Served) -> bool:
    try:
        with service.client() as client:
            return client.status_and_content("POST", "/v2/models/net/infer", query(X))[0] == 200
    except OSError:
        return False
