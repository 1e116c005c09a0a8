"""Serves the Open Inference Protocol over gRPC, with `grpc.aio`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from psfleet import __version__
from psfleet.errors import LostPeerError
from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference import open_inference_pb2_grpc
from psfleet.inference.access import ClientAccess, is_allowed
from psfleet.inference.grpc_messages import (
    answer_bytes,
    answer_message,
    is_raw_answer,
    metadata_message,
    num_read,
    parse_message,
    parse_query,
)
from psfleet.inference.json_process import MAX_READ_BYTES, MAX_WRITTEN_ELEMENTS, JsonProcess, num_listed
from psfleet.inference.query import Answer, Query
from psfleet.inference.service import PLATFORM, ModelService
from psfleet.inference.tensors import QueryError, Status

HEADER = "authorization"
HEALTH = ("ServerLive", "ServerReady")
SERVER = "psfleet"
END_SECS = 5.0
"""Until calls are ended at the end; queries have been answered by then."""

HANDSHAKE_SECS = 10.0
"""Until a client has finished the handshakes of TLS and HTTP/2."""
IDLE_SECS = 300.0
"""Until a connection without calls is closed; clients open another one when they call."""


@asynccontextmanager
async def serving_grpc(service: ModelService, host: str, port: int, access: ClientAccess) -> AsyncIterator[None]:
    """Async context manager that serves.

    Raises:
        LostPeerError: The port is in use.
    """
    options = (
        ("grpc.max_receive_message_length", service.max_query_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_SECS)),
        ("grpc.max_connection_idle_ms", int(1000 * IDLE_SECS)),
        # gRPC closes those beyond it at once.
        ("grpc.max_allowed_incoming_connections", access.max_connections),
    )
    server = grpc.aio.server(options=options, interceptors=(_Guard(access.token), _Decoder()))
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if access.certificate is None:
            server.add_insecure_port(at)
        else:
            server.add_secure_port(at, access.certificate.credentials())
    except RuntimeError as error:
        raise LostPeerError(f"gRPC port {port} of {host} is not available, expected a free port") from error
    with JsonProcess() as process:
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(service, process), server)
        await server.start()
        try:
            yield
        finally:
            await server.stop(END_SECS)


class Servicer(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The methods of the protocol."""

    def __init__(self, service: ModelService, process: JsonProcess) -> None:
        self._service = service
        self._process = process

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        """Whether the server answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:
        """Whether a member is ready."""
        return pb.ServerReadyResponse(ready=self._service.is_ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:
        """Whether a version of the model is ready."""
        async with _Aborting(context):
            ready = self._service.is_model_ready(request.name, request.version)
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Any) -> pb.ServerMetadataResponse:
        """Name and version of the server."""
        return pb.ServerMetadataResponse(name=SERVER, version=__version__)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> pb.ModelMetadataResponse:
        """Inputs and outputs of the model."""
        async with _Aborting(context):
            version, metadata = self._service.metadata(request.name, request.version)
        return metadata_message(self._service.name, version, PLATFORM, metadata)

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        """The answer to a query."""
        async with _Aborting(context):
            _, answer = await self._service.infer(partial(self._query, request), "grpc")
            return await self._message(answer, request)

    async def _query(self, request: pb.ModelInferRequest) -> Query:
        if num_read(request) <= MAX_READ_BYTES:
            return parse_query(request)
        query: Query = await self._process.elsewhere(parse_message, request.SerializeToString())
        return query

    async def _message(self, answer: Answer, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        is_raw = is_raw_answer(answer, request)
        if num_listed(answer, None if is_raw else ()) <= MAX_WRITTEN_ELEMENTS:
            return answer_message(answer, request.id, is_raw)
        return pb.ModelInferResponse.FromString(await self._process.elsewhere(answer_bytes, answer, request.id, is_raw))


class _Aborting:
    """Async context manager that ends a call with the status of a QueryError."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, QueryError):
            await self._context.abort(grpc.StatusCode[error.status.grpc], str(error))


class _Guard(grpc.aio.ServerInterceptor):
    """Refuses calls without the token; those of the server's health need none."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        header = next((value for name, value in details.invocation_metadata if name == HEADER), "")
        method = details.method.rpartition("/")[2]
        handler = await continuation(details)
        if handler is None or method in HEALTH or is_allowed(self._token, str(header)):
            return handler

        async def refuse(requests: Any, context: Any) -> None:
            text = f"the metadata key {HEADER} has no valid token"
            await context.abort(grpc.StatusCode[Status.UNAUTHENTICATED.grpc], text)

        # Of a stream, because the server reads the message of a unary call before it calls the handler.
        return grpc.stream_unary_rpc_method_handler(refuse)


class _Decoder(grpc.aio.ServerInterceptor):
    """Decodes the messages of calls: grpc's status for one that is broken is UNKNOWN, and it logs a traceback."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None:
            return None

        async def call(message: bytes, context: Any) -> Any:
            async with _Aborting(context):
                request = _decoded(handler.request_deserializer, message)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(call, response_serializer=handler.response_serializer)


def _decoded(decode: Callable[[bytes], Any], message: bytes) -> Any:
    try:
        return decode(message)
    except DecodeError as error:
        raise QueryError(Status.INVALID, f"the message cannot be decoded: {error}") from error
