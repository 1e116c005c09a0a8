"""`tls: true` on a real engine: who gets in and what can be read; and a fleet trains and recovers as without it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.images import docker
from support.programs import marked_program
from support.tls_fleet import Fleet, fleet

from psfleet.checkpoint import export
from psfleet.manifests.container import CONTROL_PORT, EXCHANGE_PORT, TLS, TUNNEL_PORT
from psfleet.tls import certificates

HOSTS = ("ps-0", "ps-1", "chief", "worker")
ENOUGH_BYTES = 500_000
"""Of captured traffic: about a dozen steps."""
CAPTURE = ("--user", "0", "--cap-drop", "ALL", "--cap-add", "NET_RAW")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet without TLS, in training: shows that what strangers try would work."""
    with fleet(tmp_path, tls=False) as started:
        started.advances()
        yield started


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with TLS, in training until the last test of this file."""
    with fleet(tmp_path_factory.mktemp("secured"), tls=True) as started:
        started.advances()
        yield started


@pytest.fixture
def tunnelled(tmp_path: Path) -> Iterator[Fleet]:
    """A fleet with TLS, in training, whose gradients and parameters are sent by TensorFlow's servers."""
    with fleet(tmp_path, tls=True, replication="in_graph") as started:
        started.advances()
        yield started


def capture(fleet: Fleet, interface: str) -> dict[str, object]:
    """What somebody sees who listens to ps 0's packets."""
    options = (*CAPTURE, "--network", f"container:{fleet.container('ps-0')}")
    return fleet.run("listener.py", interface, str(marked_program.MARK), str(ENOUGH_BYTES), options=options)


def stranger(fleet: Fleet, folder: Path) -> dict[str, object]:
    """What a container on the fleet's own network can do with the certificates of a folder."""
    options = ("--network", fleet.network, "--volume", f"{folder}:/others:ro")
    return fleet.run("compose_stranger.py", "/others", fleet.name, *HOSTS, options=options)


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A worker's certificate of another authority."""
    certificates.make(tmp_path / "others")
    return tmp_path / "others" / "worker"


def test_without_tls_a_stranger_on_the_network_gets_in_and_reads_weights(plain: Fleet, others: Path) -> None:
    found = stranger(plain, others)
    assert found["tensorflow_ports"] == [f"{host}:2222" for host in HOSTS]
    assert found["control"]
    assert found["session"]
    assert found["exchanges"] == ["ps-0", "ps-1"]
    assert capture(plain, "eth0")["found"]


def test_with_tls_a_stranger_on_the_network_gets_nowhere(secured: Fleet, others: Path) -> None:
    assert stranger(secured, others) == {
        "tensorflow_ports": [],
        "control": False,
        "control_with_other_certificate": False,
        "tunnels": [],
        "tunnels_with_other_certificate": [],
        "exchanges": [],
        "exchanges_with_other_certificate": [],
        "session": False,
    }


def test_what_the_stranger_tried_works_with_the_fleets_own_certificate(secured: Fleet) -> None:
    found = stranger(secured, secured.certificates / "worker")
    assert found["tunnels_with_other_certificate"] == ["ps-0", "ps-1"], "workers take connections from ps only"
    assert found["exchanges_with_other_certificate"] == ["ps-0", "ps-1"]
    assert found["control_with_other_certificate"]


def test_with_tls_no_weight_is_read_from_captured_traffic(secured: Fleet) -> None:
    seen = capture(secured, "eth0")
    assert not seen["found"]
    assert seen["bytes"] >= ENOUGH_BYTES


def test_with_tls_no_weight_is_read_from_what_tensorflow_sends_through_tunnels(tunnelled: Fleet) -> None:
    seen = capture(tunnelled, "eth0")
    assert not seen["found"]
    assert seen["bytes"] >= ENOUGH_BYTES
    assert capture(tunnelled, "lo")["found"], "behind the tunnel, in the ps's own container, it is there"


def test_running_processes_take_over_a_renewed_certificate_and_keep_their_connections(secured: Fleet) -> None:
    losses = secured.count_messages("chief", "lost a peer")
    certificates.renew(secured.certificates)
    ports = {"ps": (CONTROL_PORT, TUNNEL_PORT, EXCHANGE_PORT), "worker": (CONTROL_PORT, TUNNEL_PORT)}
    for service, role in (("ps-0", "ps"), ("chief", "worker")):
        secured.wait_for(partial(secured.count_messages, service, "new certificate"), f"{service} to notice")
        expected = (secured.certificates / role / "tls.crt").read_text().split()
        for port in ports[role]:
            script = f"import ssl; print(ssl.get_server_certificate(('127.0.0.1', {port})))"
            assert docker("exec", secured.container(service), "python", "-c", script).stdout.split() == expected
    secured.advances()
    assert secured.count_messages("chief", "lost a peer") == losses


def test_a_worker_that_was_killed_comes_back(secured: Fleet) -> None:
    before = secured.count_messages("worker", "joined as worker 1")
    secured.kill("worker")
    secured.wait_for(
        lambda: secured.count_messages("worker", "joined as worker 1") > before, "the worker to join again"
    )
    secured.advances()


def test_a_ps_that_was_killed_comes_back(secured: Fleet) -> None:
    secured.kill("ps-1")
    secured.wait_for(lambda: secured.step(generation=2) >= 0, "the next generation")
    secured.advances(generation=2)


def test_the_fleet_says_it_is_healthy(secured: Fleet) -> None:
    for host in HOSTS:
        done = docker("exec", secured.container(host), "python", "-m", "psfleet.service.health", check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_no_container_holds_the_authoritys_key(secured: Fleet) -> None:
    for host in HOSTS:
        assert set(docker("exec", secured.container(host), "ls", TLS).stdout.split()) == {
            "ca.crt",
            "tls.crt",
            "tls.key",
        }


def test_the_fleet_trains_to_the_end_with_the_right_weights(secured: Fleet, tmp_path: Path) -> None:
    (secured.folder / "go").touch()
    assert secured.exit_codes() == dict.fromkeys(("chief", "worker", "ps-0", "ps-1"), 0), secured.logs()
    docker("cp", f"{secured.container('chief')}:/out/checkpoints", str(tmp_path))
    export.export(tmp_path / "checkpoints", tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    np.testing.assert_allclose(found["weights"], marked_program.ANSWER, atol=1e-4)
    assert (found["mark"] == np.float32(marked_program.MARK)).all()
