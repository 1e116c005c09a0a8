"""Passes the calls of one gRPC service on to another server, without reading them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc

Metadata = tuple[tuple[str, str], ...]
Check = Callable[[grpc.ServicerContext], None]
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""Of a call whose connection is lost, or whose server stops while it runs."""


class CallRelay(grpc.GenericRpcHandler):
    """The unary calls of a service; each is passed on, and its answer or error back.

    A call whose connection is lost, or whose server stops, is made again: it must be one that can be repeated.

    Args of the constructor:
        service: Its full name.
        target: The channel to the other server.
        check: Called before a call is passed on; may end it.
        metadata: Sent with each call.
        clock: Monotonic time in seconds.
        call_secs: Deadline of a call, which waits for the other server.
    """

    def __init__(
        self,
        service: str,
        target: grpc.Channel,
        call_secs: float,
        check: Check = lambda context: None,
        metadata: Metadata = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = f"/{service}/"
        self._target = target
        self._call_secs = call_secs
        self._check = check
        self._metadata = metadata
        self._clock = clock

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """See grpc.GenericRpcHandler."""
        if not details.method.startswith(self._prefix):
            return None
        call = self._target.unary_unary(details.method)

        def relayed(request: bytes, context: grpc.ServicerContext) -> Any:
            self._check(context)
            try:
                return self._pass_on(call, request)
            except grpc.RpcError as error:
                return context.abort(error.code(), error.details() or "")

        return grpc.unary_unary_rpc_method_handler(relayed)

    def _pass_on(self, call: Any, request: bytes) -> Any:
        """Makes a call, again if the connection is lost while it runs."""
        until = self._clock() + self._call_secs
        while True:
            secs = until - self._clock()
            try:
                return call(request, timeout=secs, metadata=self._metadata, wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() not in LOST or secs <= 0:
                    raise
