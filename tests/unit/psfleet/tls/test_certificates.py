"""The run's certificates: content and permissions of the folder, renewal, and the RPCs that they authorize."""

from __future__ import annotations

import ssl
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psfleet.addresses import Address
from psfleet.cli import main
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc, driver_control_pb2, run_control_pb2
from psfleet.control.client import PsClient
from psfleet.control.credentials import CALLERS, CALLERS_OF_SERVICES, SERVICES, STUDY_STORAGE, channel
from psfleet.control.server import serving
from psfleet.errors import BadJobError, LostPeerError, UsageError
from psfleet.processes.ports import free_addresses
from psfleet.service import health
from psfleet.tls import certificates
from psfleet.tls.identity import SERVICE, Identity

FILES = {"ca.crt", "tls.crt", "tls.key"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificates.make(tmp_path / "certs")
    return tmp_path / "certs"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def leaf(folder: Path, role: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / role / "tls.crt").read_bytes())


def test_only_the_owner_gets_into_the_folder_and_any_user_into_a_mounted_role(folder: Path) -> None:
    assert mode(folder) == 0o700
    assert mode(folder / "ca.key") == 0o600
    for role in ("ps", "worker", "loader", "client"):
        assert mode(folder / role) == 0o755
        assert {path.name: mode(path) for path in (folder / role).iterdir()} == dict.fromkeys(FILES, 0o644)


def test_nothing_of_the_authoritys_key_is_in_a_roles_folder(folder: Path) -> None:
    secret = (folder / "ca.key").read_bytes()
    assert secret not in [path.read_bytes() for path in folder.glob("*/*")]
    assert len({path.read_bytes() for path in folder.glob("*/tls.key")}) == 4


def test_certificates_end_after_thirty_days_or_as_requested(tmp_path: Path, folder: Path) -> None:
    ends = leaf(folder, "ps").not_valid_after_utc
    assert abs(ends - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)
    requested = certificates.make(tmp_path / "short", days=1)
    assert abs(requested - datetime.now(UTC) - timedelta(days=1)) < timedelta(minutes=1)


def test_a_folder_in_use_is_left_as_it_is(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"certs: Directory not empty, expected an empty folder, or --renew"):
        certificates.make(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["certs"], "nothing half made is left"


def test_renewed_certificates_are_new_and_under_the_same_authority(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    certificates.renew(folder, days=7)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in before if after[path] == before[path]} == {"ca.crt", "ca.key"}
    leaf(folder, "worker").verify_directly_issued_by(x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()))


def test_no_certificate_outlives_its_authority(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    assert certificates.renew(folder, days=5000) == authority.not_valid_after_utc


def test_what_is_no_folder_of_certificates_is_not_renewed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected those of `psfleet certs`"):
        certificates.renew(tmp_path)


def test_a_run_gets_certificates_once_and_new_ones_when_two_thirds_of_their_time_are_over(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "certs"
    certificates.ensure(folder)
    first = leaf(folder, "ps")
    certificates.ensure(folder)
    assert leaf(folder, "ps") == first
    certificates.renew(folder, days=0)
    ended = leaf(folder, "ps")
    certificates.ensure(folder)
    assert leaf(folder, "ps").not_valid_after_utc > ended.not_valid_after_utc


def test_an_identity_says_its_role_and_reads_what_was_renewed(folder: Path) -> None:
    identity = Identity(folder / "worker")
    first = identity.current()
    assert (identity.role, identity.current()) == ("worker", first)
    certificates.renew(folder)
    assert identity.current() != first
    assert identity.current() is identity.current()


def test_files_that_do_not_fit_are_refused_at_first_and_ignored_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psfleet.tls.identity.SETTLE_SECS", 0.0)
    identity = Identity(folder / "ps")
    before = identity.current()
    (folder / "ps" / "tls.key").write_bytes((folder / "worker" / "tls.key").read_bytes())
    assert identity.current() is before
    with pytest.raises(BadJobError, match=r"TLS: .*tls\.key is not the key of tls\.crt"):
        Identity(folder / "ps")


def test_a_certificate_that_has_ended_is_refused_with_the_command_that_helps(folder: Path) -> None:
    certificates.renew(folder, days=0)
    with pytest.raises(BadJobError, match=r"TLS: .*tls\.crt expired on .*psfleet certs --renew"):
        Identity(folder / "ps")


def test_a_folder_without_certificates_is_refused_with_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(BadJobError, match=r"expected ca\.crt, tls\.crt and tls\.key"):
        Identity(tmp_path)


class Servicer(control_pb2_grpc.ShardControlServicer):
    """A ps without state, of which only the connection is tested."""

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.ShardState:
        return pb.ShardState(run=request.caller.run)

    def Reset(self, request: pb.ResetRequest, context: grpc.ServicerContext) -> pb.ResetReply:
        return pb.ResetReply(found=True)

    def FetchPart(self, request: pb.FetchPartRequest, context: grpc.ServicerContext) -> Iterator[pb.PartChunk]:
        yield pb.PartChunk(data=b"a part")


@contextmanager
def ps(folder: Path) -> Iterator[Address]:
    """A control port under the certificate of role ps."""
    [address] = free_addresses(1)
    with serving(address, Servicer(), Identity(folder / "ps")):
        yield address


@contextmanager
def client(address: Address, identity: Identity | None) -> Iterator[PsClient]:
    made = PsClient(address, "run", identity)
    try:
        yield made
    finally:
        made.close()


def test_a_worker_is_answered_and_its_calls_are_named(folder: Path) -> None:
    with ps(folder) as address, client(address, Identity(folder / "worker")) as worker:
        assert worker.describe().run == "run"
        with pytest.raises(BadJobError, match="a certificate for worker may not call Reset"):
            worker.reset()


def test_the_command_line_may_reset_and_a_ps_may_call_nothing(folder: Path) -> None:
    with ps(folder) as address:
        with client(address, Identity(folder / "client")) as command:
            assert command.reset()
        with (
            client(address, Identity(folder / "ps")) as other,
            pytest.raises(BadJobError, match="may not call Describe"),
        ):
            other.describe()


def test_checkpoints_travel_between_ps_and_workers_only(folder: Path) -> None:
    with ps(folder) as address:
        with client(address, Identity(folder / "worker")) as chief:
            assert list(chief.fetch_part(1, 10)) == [b"a part"]
        with client(address, Identity(folder / "ps")) as other, pytest.raises(BadJobError, match="may not call Fetch"):
            list(other.fetch_part(1, 10))


def test_every_method_of_the_control_plane_has_its_callers() -> None:
    services = pb.DESCRIPTOR.services_by_name.values()
    assert set(CALLERS) == {method for service in services for method in service.methods_by_name}
    others = {
        service.full_name
        for file in (run_control_pb2, driver_control_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    }
    assert set(CALLERS_OF_SERVICES) == others | {STUDY_STORAGE}
    assert set(SERVICES) == {service.full_name for service in services} | set(CALLERS_OF_SERVICES)


def test_without_a_certificate_or_with_another_authoritys_no_call_is_answered(tmp_path: Path, folder: Path) -> None:
    certificates.make(tmp_path / "others")
    with ps(folder) as address:
        for identity in (None, Identity(tmp_path / "others" / "worker")):
            with client(address, identity) as stranger, pytest.raises(LostPeerError, match="unavailable"):
                stranger.describe()
        trusted = grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes())
        options = (("grpc.ssl_target_name_override", "ps"),)
        with grpc.secure_channel(address.control, trusted, options=options) as nameless:
            stub = health_pb2_grpc.HealthStub(nameless)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Check(health_pb2.HealthCheckRequest(), timeout=5.0)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_peer_of_another_role_is_not_taken_for_a_ps(folder: Path) -> None:
    [address] = free_addresses(1)
    identity = Identity(folder / "worker")
    with (
        serving(address, Servicer(), identity),
        client(address, identity) as worker,
        pytest.raises(LostPeerError, match="unavailable"),
    ):
        worker.describe()


def test_any_role_may_ask_for_health(folder: Path) -> None:
    with ps(folder) as address, channel(address.control, "ps", Identity(folder / "ps")) as own:
        reply = health_pb2_grpc.HealthStub(own).Check(health_pb2.HealthCheckRequest(), timeout=5.0)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_a_containers_health_check_uses_its_own_certificate(tmp_path: Path, folder: Path) -> None:
    assert set(health.CREDENTIALS) == FILES
    assert health.SERVICE == SERVICE
    certificates.make(tmp_path / "others")
    with ps(folder) as address:
        assert health.problem(address.port + 1, folder / "ps") == ""
        assert "no response" in health.problem(address.port + 1, tmp_path / "others" / "ps")
        assert "no response" in health.problem(address.port + 1)


def test_both_ends_reload_renewed_certificates_while_they_run(folder: Path) -> None:
    with ps(folder) as address:
        with client(address, Identity(folder / "worker")) as worker:
            assert worker.describe().run == "run"
        before = ps_certificate(address)
        certificates.renew(folder)
        assert ps_certificate(address) != before
        assert ps_certificate(address) == (folder / "ps" / "tls.crt").read_text()


def test_a_client_whose_certificate_expires_uses_the_renewed_one(folder: Path) -> None:
    [address] = free_addresses(1)
    with client(address, Identity(folder / "worker")) as worker:
        certificates.make(folder.parent / "next")
        for path in (folder.parent / "next").glob("*/*"):
            path.rename(folder / path.parent.name / path.name)
        with serving(address, Servicer(), Identity(folder / "ps")):
            with pytest.raises(LostPeerError):
                worker.describe()
            assert worker.describe().run == "run"


def ps_certificate(address: Address) -> str:
    """The certificate that a port presents to a new connection without a client certificate."""
    return ssl.get_server_certificate((address.host, address.port + 1), timeout=5.0)


def test_the_command_makes_them_once_and_renews_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"

    def psfleet(*arguments: str) -> int:
        monkeypatch.setattr(main, "log_plain", lambda: None)
        monkeypatch.setattr(sys, "argv", ["psfleet", "certs", str(folder), *arguments])
        with pytest.raises(SystemExit) as caught:
            main.main()
        assert isinstance(caught.value.code, int)
        return caught.value.code

    assert psfleet("--days", "7") == 0
    first = leaf(folder, "ps")
    ends = f"{first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    said = f"{folder}: certificates for ps, worker, loader, client, valid until {ends}\n"
    assert capsys.readouterr().out == said
    assert psfleet() == 64
    assert "expected an empty folder" in capsys.readouterr().err
    assert psfleet("--renew") == 0
    assert leaf(folder, "ps") != first
