"""Clients of a service, concurrent in one event loop: each sends its next query when it has the answer to the last."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
from aiohttp import ClientSession

from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from psfleet.inference.rest import JSON_LENGTH

INPUT, OUTPUT, DATATYPE = "input_0", "output_0", "FP32"

Ask = Callable[[], Awaitable[np.ndarray]]
Client = Callable[[str, int], AsyncIterator[Ask]]


def example() -> np.ndarray:
    """The input of each query: one image, `[1, 28, 28, 1]`."""
    return np.random.default_rng(1).random([1, 28, 28, 1], np.float32)


@asynccontextmanager
async def rest(model: str, port: int) -> AsyncIterator[Ask]:
    """Queries over REST with tensors in binary form."""
    x = example()
    tensor = {"name": INPUT, "datatype": DATATYPE, "shape": x.shape, "parameters": {"binary_data_size": x.nbytes}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body, headers = header + x.tobytes(), {JSON_LENGTH: str(len(header))}
    url = f"http://127.0.0.1:{port}/v2/models/{model}/infer"
    async with ClientSession() as session:

        async def ask() -> np.ndarray:
            async with session.post(url, data=body, headers=headers) as answer:
                answer.raise_for_status()
                content = await answer.read()
            return np.frombuffer(content[int(answer.headers[JSON_LENGTH]) :], np.float32)

        yield ask


@asynccontextmanager
async def over_grpc(model: str, port: int) -> AsyncIterator[Ask]:
    """Queries over gRPC with raw tensors."""
    x = example()
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[x.tobytes()])
    request.inputs.add(name=INPUT, datatype=DATATYPE, shape=x.shape)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer

        async def ask() -> np.ndarray:
            answer = await infer(request)
            return np.frombuffer(answer.raw_output_contents[0], np.float32)

        yield ask


async def latencies(asks: Sequence[Ask], secs: float) -> list[float]:
    """Seconds of each query that clients send for so long."""
    found: list[float] = []
    until = time.perf_counter() + secs

    async def repeat(ask: Ask) -> None:
        while (began := time.perf_counter()) < until:
            await ask()
            found.append(time.perf_counter() - began)

    await asyncio.gather(*(repeat(ask) for ask in asks))
    return found
