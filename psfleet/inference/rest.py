"""Serves the Open Inference Protocol over HTTP, with aiohttp."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from psfleet import __version__
from psfleet.errors import LostPeerError
from psfleet.inference.access import ClientAccess, is_allowed
from psfleet.inference.json_process import JsonProcess
from psfleet.inference.limited_site import LimitedSite
from psfleet.inference.rest_messages import metadata_content
from psfleet.inference.service import PLATFORM, ModelService
from psfleet.inference.tensors import QueryError, Status

JSON_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data",)
SERVER = "psfleet"
END_SECS = 5.0
"""Until connections are closed at the end; queries have been answered by then."""

IDLE_SECS = 75.0
"""Until a connection is closed on which no request, or only a part of its head, has arrived."""
BODY_SECS = 120.0
"""Until the body of a query has arrived."""

logger = logging.getLogger("psfleet.front.rest")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving_rest(service: ModelService, host: str, port: int, access: ClientAccess) -> AsyncIterator[None]:
    """Async context manager that serves; in a loop of any thread.

    Raises:
        LostPeerError: The port is in use.
    """
    with JsonProcess() as json_process:
        app = application(service, access.token, json_process)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=END_SECS,
            keepalive_timeout=IDLE_SECS,
            logger=logger,
        )
        await runner.setup()
        try:
            await LimitedSite(runner, host, port, access).start()
        except OSError as error:
            await runner.cleanup()
            raise LostPeerError(
                f"REST port {port} of {host} is not available ({error.strerror or error}), expected a free port"
            ) from error
        try:
            yield
        finally:
            await runner.cleanup()


def application(service: ModelService, token: str, json_process: JsonProcess) -> web.Application:
    """The routes of the protocol; health needs no token."""

    @web.middleware
    async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not request.path.startswith("/v2/health/") and not is_allowed(
                token, request.headers.get("Authorization", "")
            ):
                raise QueryError(Status.UNAUTHENTICATED, "the header Authorization has no valid token")
            return await handler(request)
        except QueryError as error:
            return _error(error.status.http, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _error(Status.TOO_LARGE.http, f"the body is larger than {service.max_query_bytes} bytes")
        except web.RequestPayloadError as error:
            reason = str(error).rpartition("\n")[2].strip()
            return _error(Status.INVALID.http, f"the body cannot be read: {reason}")
        except ConnectionError:
            return _error(Status.INVALID.http, "the connection was lost before the body has arrived")
        except web.HTTPException as error:
            found = _error(error.status, f"{request.method} {request.path}: {error.reason}")
            if "Allow" in error.headers:
                found.headers["Allow"] = error.headers["Allow"]
            return found

    app = web.Application(middlewares=[errors_as_json], client_max_size=service.max_query_bytes)
    handlers = _Handlers(service, json_process)
    model = "/v2/models/{model}"
    app.add_routes(
        [
            web.get("/v2/health/live", handlers.live),
            web.get("/v2/health/ready", handlers.ready),
            web.get("/v2", handlers.server),
            *(web.get(f"{path}/ready", handlers.model_ready) for path in (model, model + "/versions/{version}")),
            *(web.get(path, handlers.model) for path in (model, model + "/versions/{version}")),
            *(web.post(f"{path}/infer", handlers.infer) for path in (model, model + "/versions/{version}")),
        ]
    )
    return app


class _Handlers:
    """The handlers of all routes."""

    def __init__(self, service: ModelService, json_process: JsonProcess) -> None:
        self._service = service
        self._json = json_process

    async def live(self, request: web.Request) -> web.Response:
        """Whether the server answers."""
        return web.json_response({"live": True})

    async def ready(self, request: web.Request) -> web.Response:
        """Whether a member is ready."""
        return _ready(self._service.is_ready, {})

    async def model_ready(self, request: web.Request) -> web.Response:
        """Whether a version of the model is ready."""
        model, version = _model(request)
        return _ready(self._service.is_model_ready(model, version), {"name": model})

    async def server(self, request: web.Request) -> web.Response:
        """Name and version of the server."""
        return web.json_response({"name": SERVER, "version": __version__, "extensions": list(EXTENSIONS)})

    async def model(self, request: web.Request) -> web.Response:
        """Inputs and outputs of the model."""
        version, metadata = self._service.metadata(*_model(request))
        return web.json_response(metadata_content(self._service.name, version, PLATFORM, metadata))

    async def infer(self, request: web.Request) -> web.Response:
        """The answer to a query."""
        model, version = _model(request)
        self._service.require_model(model)
        try:
            async with asyncio.timeout(BODY_SECS):
                body = await request.read()
        except TimeoutError:
            return _error(408, f"the body has not arrived within {BODY_SECS:g} s")
        parse = partial(self._json.query, model, version, body, request.headers.get(JSON_LENGTH))
        query, answer = await self._service.infer(parse, "rest")
        content, length = await self._json.answer_body(answer, query)
        if length is None:
            return web.Response(body=content, content_type="application/json")
        return web.Response(body=content, content_type="application/octet-stream", headers={JSON_LENGTH: str(length)})


def _is_of_front(record: logging.LogRecord) -> bool:
    """Whether a record is no error of a client, of which anyone can cause as many as the disk has room for."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return not isinstance(error, HttpProcessingError)


logger.addFilter(_is_of_front)


def _model(request: web.Request) -> tuple[str, str]:
    return request.match_info["model"], request.match_info.get("version", "")


def _ready(is_ready: bool, content: dict[str, Any]) -> web.Response:
    return web.json_response({**content, "ready": is_ready}, status=200 if is_ready else Status.UNAVAILABLE.http)


def _error(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=json.dumps({"error": message}).encode(), content_type="application/json")
