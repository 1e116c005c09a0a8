"""A call through a relay: what the chief gets and answers, and what the caller learns if something ends on the way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.piped_relay import Piped, Scripted, relay, relay_process

from psfleet.control import relay as relay_module
from psfleet.control import relay_client, run_control_pb2_grpc
from psfleet.control import run_control_pb2 as pb
from psfleet.control.credentials import channel
from psfleet.control.frames import Frame, Kind
from psfleet.control.relay_client import MODULE, RelayClient
from psfleet.control.server import serving
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import BUG, LostPeerError, PsfleetError, UsageError
from psfleet.polling import run_within
from psfleet.processes.ports import free_addresses
from psfleet.tls import certificates
from psfleet.tls.identity import Identity

CALL_SECS = 20.0
CALLER = pb.RunCall(run="run", call="1")
TENSORS = {"a": np.arange(700_001, dtype=np.float32), "b": np.zeros((0, 2)), "c": np.array([True, False]),
           "d": np.array(3.5), "e": np.arange(5, dtype=">f4"), "f": np.arange(6).reshape(2, 3).T}  # fmt: skip
OK = Frame.of(Kind.STATUS, code="OK", details="")
SAVED = Frame(Kind.MESSAGE, pb.SavedReply(folder="/out", step=7).SerializeToString())


class Chief(run_control_pb2_grpc.RunControlServicer):
    """Answers what it gets.

    Attributes:
        is_called, has_gone: Set when `Evaluate` is called, and when its caller has gone.
    """

    def __init__(self) -> None:
        self.is_called, self.has_gone = threading.Event(), threading.Event()

    def Save(self, request: Any, context: Any) -> Any:
        """See run_control.proto."""
        return pb.SavedReply(folder=request.run, step=7)

    def Gradient(self, request_iterator: Any, context: Any) -> Any:
        """See run_control.proto."""
        head, tensors = receiving(request_iterator, lambda specs: None)
        yield from sending(head.caller, tensors, loss=head.batches)

    def GetWeights(self, request: Any, context: Any) -> Any:
        """See run_control.proto."""
        yield from sending(request, TENSORS)

    def SetWeights(self, request_iterator: Any, context: Any) -> Any:
        """See run_control.proto. Refuses at the first message."""
        next(request_iterator)
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not these")

    def Train(self, request: Any, context: Any) -> Any:
        """See run_control.proto."""
        raise ValueError("a bug")

    def Evaluate(self, request: Any, context: Any) -> Any:
        """See run_control.proto. Returns when its caller has gone."""
        context.add_callback(self.has_gone.set)
        self.is_called.set()
        # For longer than `relay` waits for its threads: they must not end because this does.
        self.has_gone.wait(4 * CALL_SECS)
        return pb.EvaluatedReply()


@pytest.fixture
def chief() -> Chief:
    return Chief()


@pytest.fixture
def client(chief: Chief) -> Iterator[RelayClient]:
    """Reaches the chief through a relay of its own for each call."""
    [address] = free_addresses(1)
    with serving(address, run_control=chief), channel(address.control, "worker", None) as to_chief:
        yield RelayClient(lambda: relay(to_chief), "the chief")


def scripted(*pieces: Any, **options: Any) -> RelayClient:
    return RelayClient(lambda: nullcontext(Scripted(*pieces, **options)), "the chief")


def save(client: RelayClient) -> Any:
    return client.call("Save", lambda: CALLER, timeout_secs=CALL_SECS)


def mirrored(client: RelayClient, batches: int) -> None:
    """Sends tensors, which come back."""

    def consume(answers: Iterator[Any]) -> tuple[Any, dict[str, np.ndarray]]:
        return receiving(answers, lambda specs: None)

    head, found = client.call("Gradient", lambda: sending(CALLER, TENSORS, batches=batches), consume=consume)
    assert head.loss == batches
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(found[name], value)
        assert (found[name].dtype, found[name].shape) == (value.dtype.newbyteorder("="), value.shape)


def test_an_answer_and_streams_of_tensors_are_what_the_chief_sends(client: RelayClient) -> None:
    assert save(client) == pb.SavedReply(folder="run", step=7)
    mirrored(client, 3)


def test_calls_at_the_same_time_do_not_mix(client: RelayClient) -> None:
    with ThreadPoolExecutor(3) as pool:
        for call in [pool.submit(mirrored, client, number) for number in range(3)]:
            call.result(CALL_SECS)


def test_a_refusal_in_the_middle_of_a_stream_is_the_chiefs(client: RelayClient) -> None:
    many = {str(number): np.zeros(1 << 20, np.uint8) for number in range(30)}
    with pytest.raises(UsageError, match=r"^not these$"):
        client.call("SetWeights", lambda: sending(CALLER, many))


def test_a_bug_of_the_chief_is_an_error_and_not_a_reason_to_call_again(client: RelayClient) -> None:
    with pytest.raises(PsfleetError, match=r"the chief has a bug, see its log: .*a bug") as caught:
        client.call("Train", lambda: pb.TrainRequest(caller=CALLER))
    assert caught.value.exit_code == BUG


def test_a_chief_that_does_not_answer_is_a_lost_peer() -> None:
    [address] = free_addresses(1)
    with channel(address.control, "worker", None) as to_chief, pytest.raises(LostPeerError, match=r"the chief: "):
        save(RelayClient(lambda: relay(to_chief), "the chief"))


def test_a_call_that_is_given_up_ends_at_the_chief(chief: Chief, client: RelayClient) -> None:
    def check() -> None:
        if chief.is_called.is_set():
            raise LostPeerError("the run has ended")

    with pytest.raises(LostPeerError, match=r"the run has ended"):
        client.call("Evaluate", lambda: CALLER, check)
    assert chief.has_gone.wait(CALL_SECS), "the chief still works for a caller that has gone"


@pytest.mark.parametrize(
    ("client", "kind", "message"),
    [
        pytest.param(scripted(SAVED), LostPeerError, r"its relay has ended \(exit code 137\)", id="dies midway"),
        pytest.param(scripted(SAVED.packed()[:9]), LostPeerError, "ended within a frame", id="dies within a frame"),
        pytest.param(scripted(refuses=True), LostPeerError, "its relay has ended", id="dies at once"),
        pytest.param(scripted(OK), LostPeerError, "0 answers to Save, expected one", id="no answer"),
        pytest.param(scripted(SAVED, SAVED, OK), LostPeerError, "2 answers to Save, expected one", id="two answers"),
        pytest.param(
            scripted(code=1, text="/bin/python: No module named psfleet.control.relay"),
            UsageError,
            "No module named .*expected an image of psfleet",
            id="an older image",
        ),
        pytest.param(scripted(code=78, text="TLS: no valid certificate"), UsageError, "TLS: no valid", id="no TLS"),
        pytest.param(scripted(code=1, text="ValueError: a bug"), PsfleetError, "ValueError: a bug", id="a bug"),
        pytest.param(scripted(b"Hello"), LostPeerError, "b'Hello' has arrived, expected frames", id="other output"),
    ],
)
def test_a_relay_that_ends_without_a_status_is_not_an_answer(
    client: RelayClient, kind: type[PsfleetError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        save(client)
    assert type(caught.value) is kind


def test_the_status_of_a_relay_that_ends_while_it_is_sent_a_message_counts() -> None:
    refused = Frame.of(Kind.STATUS, code="FAILED_PRECONDITION", details="not these")
    with pytest.raises(UsageError, match=r"^not these$"):
        save(scripted(refused, refuses=True))


def test_a_relay_that_is_silent_for_too_long_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_client, "SILENT_SECS", -1.0)
    with pytest.raises(LostPeerError, match=r"its relay has sent nothing for -1 s"):
        save(scripted(b""))


def test_a_relay_ends_if_its_handle_takes_nothing_of_an_answer(chief: Chief, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "SILENT_SECS", 0.2)
    (source, stdin), (stdout, target) = os.pipe(), os.pipe()
    call = Frame.of(Kind.CALL, method="GetWeights", timeout_secs=CALL_SECS)
    for frame in (call, Frame(Kind.MESSAGE, CALLER.SerializeToString()), Frame(Kind.END)):
        os.write(stdin, frame.packed())
    [address] = free_addresses(1)
    with (
        serving(address, run_control=chief),
        channel(address.control, "worker", None) as to_chief,
        pytest.raises(LostPeerError, match=r"the handle has taken nothing for 0.2 s"),
    ):
        run_within(CALL_SECS, relay_module.Relay(to_chief, source, target).run)
    for each in (stdin, stdout):
        os.close(each)


def test_nothing_follows_a_frame_that_a_handle_took_only_a_part_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is frozen for too long in the middle of an answer, and then reads on."""
    monkeypatch.setattr(relay_module, "SILENT_SECS", 0.2)
    stdout, target = os.pipe()
    unused: Any = None
    frozen, frame = relay_module.Relay(unused, unused, target), Frame(Kind.MESSAGE, bytes(1 << 20))
    with pytest.raises(LostPeerError, match=r"the handle has taken nothing for 0.2 s"):
        frozen._send(frame)
    part = os.read(stdout, 1 << 20)
    assert frame.packed().startswith(part)
    with pytest.raises(LostPeerError, match="only a part of a frame"):
        frozen._send(Frame(Kind.ALIVE))
    os.close(target)
    assert os.read(stdout, 1) == b""
    os.close(stdout)


def test_a_call_that_waits_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_client, "ALIVE_SECS", -1.0)
    command = Scripted(b"", SAVED, OK)
    save(RelayClient(lambda: nullcontext(command), "the chief"))
    assert Frame(Kind.ALIVE).packed() in command.sent


@contextmanager
def started(words: list[str]) -> Iterator[Piped]:
    with relay_process(words) as (command, _):
        yield command


def test_the_command_in_the_container_reaches_a_chief_with_tls(tmp_path: Path, chief: Chief) -> None:
    certificates.make(tmp_path)
    [address] = free_addresses(1)
    of: Callable[..., list[str]] = lambda *words: ["python", "-m", MODULE, str(address.control_port), *words]  # noqa: E731
    with serving(address, identity=Identity(tmp_path / "worker"), run_control=chief):
        assert save(RelayClient(lambda: started(of(str(tmp_path / "worker"))), "the chief")).step == 7
        with pytest.raises(LostPeerError, match=r"the chief: "):
            save(RelayClient(lambda: started(of()), "the chief"))


def test_the_command_ends_with_its_handle_and_says_what_is_wrong_with_its_certificate(tmp_path: Path) -> None:
    with relay_process(["python", "-m", MODULE, "1"]) as (_, process):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(CALL_SECS) == 75
        assert process.stderr is not None
        assert b"the handle began with END, expected CALL" in process.stderr.read()
    with relay_process(["python", "-m", MODULE, "1", str(tmp_path)]) as (_, process):
        assert process.wait(CALL_SECS) == 78
        assert process.stderr is not None
        assert b"TLS" in process.stderr.read()
