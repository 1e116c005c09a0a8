"""Calls that are passed on to another server: answers, errors, refusals, and a server that is lost meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from psfleet.control.call_relay import CallRelay

SERVICE = "tests.Echo"
CALL_SECS = 20.0
Answer = Callable[[bytes, grpc.ServicerContext], bytes]


class Echo(grpc.GenericRpcHandler):
    """Answers each call of any service by a function."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """See grpc.GenericRpcHandler."""
        return grpc.unary_unary_rpc_method_handler(self._answer)


@contextmanager
def served(path: Path, handler: grpc.GenericRpcHandler) -> Iterator[grpc.Server]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(handler,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield server
    finally:
        server.stop(0).wait()


class Relayed:
    """A relay to `target`, and a caller of the relay."""

    def __init__(self, folder: Path, call_secs: float = CALL_SECS, **arguments: Any) -> None:
        self.target = folder / "target"
        self._stack = ExitStack()
        channel = self._stack.enter_context(grpc.insecure_channel(f"unix:{self.target}"))
        relay = CallRelay(SERVICE, channel, call_secs, **arguments)
        self._stack.enter_context(served(folder / "relay", relay))
        self._caller = self._stack.enter_context(grpc.insecure_channel(f"unix:{folder / 'relay'}"))

    def __enter__(self) -> Relayed:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def call(self, request: bytes, service: str = SERVICE) -> bytes:
        answer: bytes = self._caller.unary_unary(f"/{service}/Say")(request, timeout=CALL_SECS)
        return answer


def test_an_answer_and_an_error_come_back_and_metadata_go_along(tmp_path: Path) -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        if request == b"fail":
            context.abort(grpc.StatusCode.NOT_FOUND, "no trial 7")
        return request + dict(context.invocation_metadata())["who"].encode()

    with Relayed(tmp_path, metadata=(("who", "me"),)) as relayed, served(relayed.target, Echo(answer)):
        assert relayed.call(b"it is ") == b"it is me"
        with pytest.raises(grpc.RpcError) as caught:
            relayed.call(b"fail")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "no trial 7")


def test_a_call_that_is_refused_or_of_another_service_does_not_reach_the_other_server(tmp_path: Path) -> None:
    reached = threading.Event()

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        reached.set()
        return request

    def refuse(context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "replaced")

    with Relayed(tmp_path, check=refuse) as relayed, served(relayed.target, Echo(answer)):
        for service, code in [
            (SERVICE, grpc.StatusCode.FAILED_PRECONDITION),
            (SERVICE + "s", grpc.StatusCode.UNIMPLEMENTED),
            ("other", grpc.StatusCode.UNIMPLEMENTED),
        ]:
            with pytest.raises(grpc.RpcError) as caught:
                relayed.call(b"", service)
            assert caught.value.code() == code
    assert not reached.is_set()


def test_a_call_is_made_again_at_the_server_that_follows_one_that_stopped_meanwhile(tmp_path: Path) -> None:
    has_call, ends = threading.Event(), threading.Event()

    def hold(request: bytes, context: grpc.ServicerContext) -> bytes:
        has_call.set()
        ends.wait(CALL_SECS)
        return b"too late"

    with Relayed(tmp_path) as relayed, ThreadPoolExecutor(1) as caller:
        with served(relayed.target, Echo(hold)):
            answer = caller.submit(relayed.call, b"from the second")
            assert has_call.wait(CALL_SECS)
        with served(relayed.target, Echo(lambda request, context: request)):
            assert answer.result(CALL_SECS) == b"from the second"
        ends.set()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_call_that_a_stopping_server_has_cancelled_is_made_again(tmp_path: Path, code: grpc.StatusCode) -> None:
    codes = [code]

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        if codes:
            context.abort(codes.pop(), "the server stops")
        return request

    with Relayed(tmp_path) as relayed, served(relayed.target, Echo(answer)):
        assert relayed.call(b"again") == b"again"


def test_a_server_that_does_not_come_is_an_error_at_the_deadline(tmp_path: Path) -> None:
    with Relayed(tmp_path, call_secs=0.2) as relayed, pytest.raises(grpc.RpcError) as caught:
        relayed.call(b"")
    assert caught.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
