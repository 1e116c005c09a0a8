"""A driver's control plane: files of workers, and callers that are refused."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from support.driver_control import CALL_SECS, NEW, OLD, ServedDriver, caller, head, served_driver

from psfleet.control import driver_control_pb2 as pb
from psfleet.control import driver_servicer, prompt_stream
from psfleet.control.driver_client import DriverClient
from psfleet.errors import BadJobError, LostPeerError, ProgramError, PsfleetError, ReplacedError, StorageError
from psfleet.polling import wait_until
from psfleet.tls import certificates
from psfleet.tls.identity import Identity

CONTENT = os.urandom(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[ServedDriver]:
    (tmp_path / "files").mkdir()
    with served_driver(tmp_path / "files") as served:
        yield served


def refusal(call: object, *arguments: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.code(), caught.value.details()


def left(driver: ServedDriver) -> list[str]:
    return sorted(path.name for path in driver.folder.iterdir())


def test_a_file_arrives_as_it_was_sent_and_comes_back(driver: ServedDriver, tmp_path: Path) -> None:
    client = driver.client()
    client.join()
    (tmp_path / "sent").write_bytes(CONTENT)
    client.deliver("0-share", tmp_path / "sent")
    client.fetch("0-share", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == (driver.folder / "0-share").read_bytes() == CONTENT
    (tmp_path / "sent").write_bytes(b"")
    client.deliver("0-share", tmp_path / "sent")
    assert (driver.folder / "0-share").read_bytes() == b""
    assert left(driver) == ["0-share"]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([pb.FileMessage(data=CONTENT[:1000])], "the stream of file '0-share' has ended early"),
        ([], "the stream of file '0-share' has ended early"),
        ([pb.FileMessage(data=b"other"), pb.FileMessage(sha256=SHA256)], "file '0-share' was changed on its way"),
    ],
)
def test_a_file_that_was_cut_or_changed_is_not_taken(
    driver: ServedDriver, messages: list[pb.FileMessage], text: str
) -> None:
    (driver.folder / "0-share").write_text("before")
    assert refusal(driver.deliver, head("0-share"), *messages) == (grpc.StatusCode.ABORTED, text)
    assert (driver.folder / "0-share").read_text() == "before"
    assert left(driver) == ["0-share"]


def test_a_process_that_is_replaced_while_it_sends_is_refused(driver: ServedDriver) -> None:
    replaced = threading.Event()

    def messages() -> Iterator[pb.FileMessage]:
        yield head("0-share")
        yield pb.FileMessage(data=CONTENT)
        replaced.wait(CALL_SECS)
        yield pb.FileMessage(sha256=SHA256)

    call = driver.stub.Deliver.future(messages(), timeout=CALL_SECS)
    wait_until(lambda: driver.registry.joined(0) is not None, CALL_SECS, "the first message")
    driver.stub.Beat(caller(NEW), timeout=CALL_SECS)
    replaced.set()
    assert call.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert call.details() == "worker 0 was replaced by another process"
    assert not left(driver)


def test_a_sender_that_pauses_is_cut_off(driver: ServedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_stream, "PAUSE_SECS", 0.2)
    resumes = threading.Event()

    def messages(*sent: pb.FileMessage) -> Iterator[pb.FileMessage]:
        yield from sent
        resumes.wait(CALL_SECS)

    for sent in ([], [head("0-share")], [head("0-share"), pb.FileMessage(data=CONTENT)]):
        call = driver.stub.Deliver.future(messages(*sent), timeout=CALL_SECS)
        assert call.code() == grpc.StatusCode.CANCELLED
        wait_until(lambda: not left(driver), CALL_SECS, "the end of the call")
    resumes.set()


def test_a_receiver_that_pauses_is_cut_off(driver: ServedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_stream, "PAUSE_SECS", 0.2)
    has_ended = threading.Event()

    def endless(path: Path) -> Iterator[pb.FileMessage]:
        try:
            while True:
                yield pb.FileMessage(data=CONTENT)
        finally:
            has_ended.set()

    monkeypatch.setattr(driver_servicer, "sending", endless)
    (driver.folder / "0-model").touch()
    call = driver.stub.Fetch(pb.FetchRequest(caller=caller(), name="0-model"))
    assert has_ended.wait(CALL_SECS)
    call.cancel()


def test_every_call_of_a_replaced_process_is_refused(driver: ServedDriver, tmp_path: Path) -> None:
    old, new = driver.client(), driver.client()
    old.join()
    new.join()
    (tmp_path / "sent").touch()
    (driver.folder / "0-share").touch()
    calls = [
        old.beat,
        lambda: old.fetch("0-share", tmp_path / "fetched"),
        lambda: old.deliver("0-share", tmp_path / "sent"),
        lambda: old.fail(PsfleetError("disk")),
    ]
    for call in calls:
        with pytest.raises(ReplacedError, match="worker 0 was replaced by another process"):
            call()
    assert new.beat() is None
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("name", ["secret", "../outside", "/etc/passwd", ""])
def test_a_file_that_is_not_offered_is_refused(driver: ServedDriver, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_text("before")
    (driver.folder / "secret").write_text("before")
    client = driver.client()
    with pytest.raises(BadJobError, match="the driver has no file"):
        client.fetch(name, tmp_path / "fetched")
    (tmp_path / "sent").write_text("changed")
    with pytest.raises(BadJobError, match="expected one that worker 0 may write"):
        client.deliver(name, tmp_path / "sent")
    assert (tmp_path / "outside").read_text() == (driver.folder / "secret").read_text() == "before"
    assert not (tmp_path / "fetched").exists()


def test_a_file_that_was_deleted_meanwhile_is_a_temporary_error(driver: ServedDriver, tmp_path: Path) -> None:
    with pytest.raises(LostPeerError, match="the file '0-model' of the driver was deleted meanwhile"):
        driver.client().fetch("0-model", tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_a_disk_that_cannot_be_written_is_named(driver: ServedDriver, tmp_path: Path) -> None:
    (tmp_path / "sent").touch()
    with pytest.raises(StorageError, match="0-no/share: No such file or directory"):
        driver.client().deliver("0-no/share", tmp_path / "sent")
    (driver.folder / "0-share").touch()
    with pytest.raises(StorageError, match="no/fetched: No such file or directory"):
        driver.client().fetch("0-share", tmp_path / "no" / "fetched")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"run": "other"}, "this driver is of 'driven', not of 'other'"),
        ({"version": "0.0"}, "worker 0 has 0.0"),
        ({"index": 2}, "worker 2: expected an index from 0 to 1"),
        ({"index": -1}, "worker -1: expected an index from 0 to 1"),
        ({"process": "../../x"}, "process is '../../x', expected 16 hexadecimal digits"),
        ({"process": OLD + "\n"}, "expected 16 hexadecimal digits"),
    ],
)
def test_callers_that_are_none_of_its_workers_are_refused(
    driver: ServedDriver, fields: dict[str, object], text: str
) -> None:
    (driver.folder / "0-share").touch()
    who = caller(**{"process": OLD, **fields})  # type: ignore[arg-type]
    calls = [
        lambda: driver.stub.Beat(who),
        lambda: list(driver.stub.Fetch(pb.FetchRequest(caller=who, name="0-share"))),
        lambda: driver.deliver(pb.FileMessage(caller=who, name="0-share")),
        lambda: driver.stub.Fail(pb.FailRequest(caller=who)),
    ]
    for call in calls:
        code, details = refusal(call)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert text in details
    assert [driver.registry.joined(index) for index in range(2)] == [None, None]


def test_a_worker_hears_that_nothing_is_left_and_the_driver_why_one_has_failed(driver: ServedDriver) -> None:
    first, second = driver.client(0), driver.client(1)
    first.join()
    second.join()
    second.fail(ProgramError("NaN"))
    joined = driver.registry.joined(1)
    assert joined is not None
    failure = driver.registry.failure(joined.process)
    assert failure is not None
    assert (failure.exit_code, failure.message) == (70, "NaN")
    driver.servicer.exit_code = 70
    assert not driver.registry.are_released()
    assert first.beat() == 70
    assert driver.registry.are_released()


def test_a_driver_that_has_gone_is_a_lost_peer(tmp_path: Path) -> None:
    with served_driver(tmp_path) as driver:
        client = driver.client()
        client.join()
    with pytest.raises(LostPeerError, match=f"the driver at {driver.address.control}: "):
        client.beat()


def test_certificates_of_other_roles_are_refused(tmp_path: Path) -> None:
    certificates.make(tmp_path / "tls")
    identities = {role: Identity(tmp_path / "tls" / role) for role in ("worker", "ps", "client")}
    with served_driver(tmp_path, identities["worker"]) as driver:
        for role, identity in identities.items():
            client = DriverClient(driver.address, "driven", 0, CALL_SECS, identity)
            if role == "worker":
                client.join()
                continue
            with pytest.raises(BadJobError, match=f"a certificate for {role} may not call Beat"):
                client.join()
            with pytest.raises(BadJobError, match=f"a certificate for {role} may not call Fetch"):
                client.fetch("0-share", tmp_path / "fetched")
