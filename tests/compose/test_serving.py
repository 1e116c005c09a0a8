"""`psfleet serve --on compose`: a front and its members as containers."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from support import port_probe, triton
from support.asking import FIRST, Asking
from support.compose_fleet import COMMAND_SECS, START_SECS
from support.compose_service import FRONT, TOKEN, ComposeService, compose_service
from support.exported_run import BIAS, KERNEL, X, with_checkpoint
from support.images import bridge_address, docker
from support.rows import first_rows
from support.served import query

from psfleet.job.service_access import BETWEEN_GRAPH, IN_GRAPH
from psfleet.processes.ports import free_addresses
from psfleet.tls.signing import new_authority, new_certificate, private_pem, public_pem

pytestmark = pytest.mark.timeout(600)


KINDS = {"plain": (BETWEEN_GRAPH, False), "tls": (IN_GRAPH, True), "in graph": (IN_GRAPH, False)}
"""By name, the mode of a service, and whether it has TLS."""


@pytest.fixture(scope="module", params=first_rows(list(KINDS)))
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeService]:
    """Those in one graph have servers of members to which that of the front connects."""
    mode, tls = KINDS[request.param]
    with compose_service(tmp_path_factory.mktemp("service"), tls=tls, mode=mode) as found:
        said = found.serve()
        assert f"{found.model} is ready: http://127.0.0.1:{found.rest_port}/v2/models/{found.model}" in said
        with Asking(found) as asking:
            asking.await_answer_of("2 of 2")
        yield found


@pytest.mark.core
def test_tritonclient_gets_answers_over_both_protocols(service: ComposeService) -> None:
    found = triton.answers(service.rest_port, service.grpc_port, X, service.model, TOKEN)
    np.testing.assert_allclose(found, [2 * FIRST, 2 * FIRST], rtol=1e-6)


def test_the_same_command_finds_the_service_and_another_one_is_refused(service: ComposeService) -> None:
    assert "is ready" in service.serve()
    refused = service.serve("--max-batch-rows", "7", code=64)
    assert f"fleet {service.name} runs another version of the service: `psfleet down {service.name}`" in refused
    rows = json.loads(service.run("status", service.name, "--on", "compose", "--json"))
    shown = [(row["role"], row["index"], row["state"], row["health"]) for row in rows]
    assert shown[0] == ("front", 0, "running", "healthy")
    assert [each[:3] for each in shown[1:]] == [("member", 0, "running"), ("member", 1, "running")]
    assert "serves step 2" in service.run("logs", service.name, "member-1", "--on", "compose")


def test_a_wrong_token_is_refused_and_the_right_one_is_shown_nowhere(service: ComposeService) -> None:
    with service.client("another-token-of-many") as client:
        status, _ = client.status_and_content("POST", f"/v2/models/{service.model}/infer", query(X))
    assert status == 401
    assert TOKEN not in docker("inspect", *service.containers()).stdout
    assert TOKEN not in service.run("logs", service.name, "--on", "compose", "--json")


def test_clients_reach_the_front_alone_and_nobody_tensorflow(service: ComposeService) -> None:
    """Without TLS a container on the closed network does reach it, so that an answer would be seen."""
    found = service.containers()
    front = found.pop(service.container(FRONT))
    published = [each for ports in front["NetworkSettings"]["Ports"].values() for each in ports or ()]
    assert sorted((each["HostIp"], int(each["HostPort"])) for each in published) == [
        ("127.0.0.1", service.rest_port),
        ("127.0.0.1", service.grpc_port),
    ]
    closed, outside = service.network("fleet"), service.network("outside")
    networks = front["NetworkSettings"]["Networks"]
    assert port_probe.answering_in(closed, networks[closed]["IPAddress"]) == ([] if service.tls else [2222])
    for at in (networks[closed]["IPAddress"], networks[outside]["IPAddress"]):
        assert port_probe.answering_in(outside, at) == []
        assert port_probe.answering_on_machine(at) == []
    for name, member in found.items():
        assert [*member["NetworkSettings"]["Networks"]] == [closed], name
        assert not any(member["NetworkSettings"]["Ports"].values()), name


def test_no_query_fails_while_a_member_is_killed_or_paused_and_it_comes_back(service: ComposeService) -> None:
    member = service.container("member-1")
    with Asking(service, clients=16) as asking:
        docker("pause", member)
        asking.await_answer_of("1 of 2")
        docker("unpause", member)
        asking.await_answer_of("2 of 2")
        service.kill_inside("member-1")
        asking.await_answer_of("1 of 2")
        asking.await_answer_of("2 of 2")
    assert service.containers()[member]["RestartCount"] == 1


@pytest.mark.extended
def test_a_process_that_stays_frozen_is_started_again(service: ComposeService) -> None:
    restarts = service.containers()[service.container("member-1")]["RestartCount"]
    with Asking(service) as asking:
        service.freeze_inside("member-1")
        asking.await_answer_of("1 of 2")
        asking.await_answer_of("2 of 2")
    assert service.containers()[service.container("member-1")]["RestartCount"] == restarts + 1


@pytest.mark.extended
def test_a_killed_front_comes_back_with_its_members(service: ComposeService) -> None:
    service.kill_inside(FRONT)
    service.wait_for(service.members, START_SECS, "both members", done=lambda found: found == "2 of 2")


@pytest.mark.extended
def test_newer_checkpoints_of_the_runs_are_served(service: ComposeService) -> None:
    for name in ("one", "two"):
        with_checkpoint(service.folder / name, 5, 7 * KERNEL, 7 * BIAS, tls=service.tls)

    service.wait_for(service.version, START_SECS, "version 5", done=lambda found: found == "5")


@pytest.mark.core
def test_down_removes_all_of_it(service: ComposeService) -> None:
    service.run("down", service.name, "--on", "compose")
    assert service.left() == {}


@pytest.mark.extended
def test_clients_verify_the_certificate_of_the_front(tmp_path: Path) -> None:
    end = datetime.now(UTC) + timedelta(days=1)
    authority = new_authority("authority", end)
    certificate, key = new_certificate("front", ["localhost"], authority, end)
    files = {"--tls-cert": tmp_path / "front.pem", "--tls-key": tmp_path / "front.key"}
    files["--tls-cert"].write_bytes(public_pem(certificate))
    files["--tls-key"].write_bytes(private_pem(key))
    files["--tls-key"].chmod(0o600)
    with compose_service(tmp_path / "service") as found:
        found.serve(*(str(word) for pair in files.items() for word in pair))
        url = f"https://localhost:{found.rest_port}/v2/models/{found.model}"
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        context = ssl.create_default_context(cadata=public_pem(authority[0]).decode())
        with urllib.request.urlopen(asked, context=context, timeout=COMMAND_SECS) as answer:
            assert json.load(answer)["name"] == found.model
        assert "PRIVATE KEY" not in docker("inspect", *found.containers()).stdout


@pytest.mark.extended
def test_a_service_at_all_addresses_has_its_metrics_on_loopback_alone(tmp_path: Path) -> None:
    other = bridge_address()
    (metrics,) = free_addresses(1)

    def page(host: str, port: int, path: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection(host, port, timeout=COMMAND_SECS)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    with compose_service(tmp_path / "service") as found:
        said = found.serve("--host", "0.0.0.0", "--metrics-port", str(metrics.port))
        assert "tokens and queries travel in clear text" in said
        assert page(other, found.rest_port, "/v2/health/ready")[0] == http.client.OK
        assert "psfleet_members_ready" in page("127.0.0.1", metrics.port, "/metrics")[1]
        with pytest.raises(ConnectionRefusedError):
            page(other, metrics.port, "/metrics")


@pytest.mark.extended
def test_a_model_that_cannot_be_served_ends_the_command_with_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    with compose_service(tmp_path / "service") as found:
        with_checkpoint(found.folder / "two", 6, KERNEL, BIAS, "graph_program")
        said = found.serve(code=64)
        assert "member-1 failed: program 'versioned_program:graph_program' has no predictions" in said
        assert found.left() == {}
