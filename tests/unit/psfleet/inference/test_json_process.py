"""Long lists, as JSON or typed contents: read and written in another process, while the event loop continues."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import time
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import ClientSession
from support.inference_service import with_service

from psfleet.inference import grpc_server, json_process
from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.grpc_messages import answer_bytes
from psfleet.inference.grpc_server import serving_grpc
from psfleet.inference.json_process import MAX_READ_BYTES, MAX_WRITTEN_ELEMENTS, JsonProcess
from psfleet.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from psfleet.inference.query import Answer, Query
from psfleet.inference.rest_messages import answer_body, parse_query
from psfleet.inference.tensors import QueryError, to_bytes

ROWS = 10_000
MAX_BYTES = 64_000_000
MANY = 2_000_000


def body(rows: int, **changes: Any) -> bytes:
    """A query of so many rows for the model of `with_service`; its numbers fit into FP16."""
    numbers = {"name": "a", "datatype": "FP16", "shape": [rows, 2], "data": [[1.5, row % 1000] for row in range(rows)]}
    texts = {"name": "b", "datatype": "BYTES", "shape": [rows], "data": ["x"] * rows}
    return json.dumps({"inputs": [{**numbers, **changes}, texts]}).encode()


@pytest.mark.extended
def test_the_event_loop_continues_while_a_large_query_is_read_and_its_answer_written() -> None:
    numbers = np.arange(MANY, dtype=np.float32)
    tensor = {"name": "a", "datatype": "FP32", "shape": [MANY], "data": (numbers + 0.5).tolist()}
    given = json.dumps({"inputs": [tensor]}).encode()
    answer = Answer("net", "3", "1 of 1", {"y": numbers})
    began = time.perf_counter()
    query = parse_query("net", "", given, None)
    read = time.perf_counter()
    written = answer_body(answer, query)
    secs = [read - began, time.perf_counter() - read]

    async def longest_pause(task: asyncio.Task[Any]) -> float:
        last = time.perf_counter()
        longest = 0.0
        while not task.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return longest

    async def use() -> None:
        with JsonProcess() as process:
            reading = asyncio.create_task(process.query("net", "", given, None))
            pauses = [await longest_pause(reading)]
            np.testing.assert_array_equal((await reading).inputs[0][1], numbers + 0.5)
            writing = asyncio.create_task(process.answer_body(answer, query))
            pauses.append(await longest_pause(writing))
            assert await writing == written
            assert all(pause < 0.5 * each for pause, each in zip(pauses, secs, strict=True)), (pauses, secs)

    asyncio.run(use())


def test_what_is_read_and_written_elsewhere_is_the_same() -> None:
    given = body(ROWS)
    outputs = {"y": np.arange(MAX_WRITTEN_ELEMENTS + 1, dtype=np.float32), "z": np.array([b"x"], object)}
    answer = Answer("net", "3", "1 of 1", outputs)

    async def use() -> tuple[Query, Any, Any]:
        with JsonProcess() as process:
            found = await process.query("net", "", given, None)
            in_json = await process.answer_body(answer, Query("net", "", "7", []))
            partly = await process.answer_body(answer, Query("net", "", "7", [], binary=frozenset({"z"})))
            return found, in_json, partly

    found, in_json, partly = asyncio.run(use())
    expected = parse_query("net", "", given, None)
    assert [name for name, _ in found.inputs] == ["a", "b"]
    for (_, one), (_, other) in zip(found.inputs, expected.inputs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert in_json == answer_body(answer, Query("net", "", "7", []))
    assert partly == answer_body(answer, Query("net", "", "7", [], binary=frozenset({"z"})))


def test_a_large_query_has_an_answer() -> None:
    status, answer = asked(body(ROWS))
    assert status == 200, answer
    numbers, texts = answer["outputs"]
    assert numbers["data"] == [value for row in range(ROWS) for value in (3.0, 2.0 * (row % 1000))]
    assert texts["data"] == ["x"] * ROWS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (body(ROWS, datatype="INT8"), "input 'a' has a fraction, expected INT8"),
        (body(ROWS)[:-1], "the body is not JSON"),
    ],
)
def test_a_large_body_that_is_no_query_is_refused(given: bytes, message: str) -> None:
    status, answer = asked(given)
    assert (status, message in answer["error"]) == (400, True), answer


def asked(given: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the answer to a query."""

    async def use(port: int) -> tuple[int, dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/v2/models/net/infer"
        async with ClientSession() as client, client.post(url, data=io.BytesIO(given)) as answer:
            return answer.status, await answer.json()

    return with_service(use, max_query_bytes=MAX_BYTES)


def test_a_short_query_needs_no_other_process() -> None:
    numbers = {"name": "a", "datatype": "FP32", "shape": [MAX_READ_BYTES], "parameters": {"binary_data_size": 262144}}
    header = json.dumps({"inputs": [numbers]}).encode()

    async def use() -> None:
        with JsonProcess() as process:
            found = await process.query("net", "", header + bytes(4 * MAX_READ_BYTES), str(len(header)))
            assert found.inputs[0][1].shape == (MAX_READ_BYTES,)
            await process.answer_body(
                Answer("net", "3", "1 of 1", dict(found.inputs)), Query("net", "", "", [], binary=None)
            )
            assert process.pid is None

    asyncio.run(use())


@pytest.mark.parametrize("header", ["BYTES", r"BYT\u0045S"])
def test_many_elements_in_binary_form_are_read_elsewhere(header: str) -> None:
    texts = {"name": "b", "datatype": "BYTES", "shape": [ROWS], "parameters": {"binary_data_size": 8 * ROWS}}
    given = json.dumps({"inputs": [texts]}).replace("BYTES", header).encode()
    elements = b"".join(b"\x04\0\0\0%04d" % row for row in range(ROWS))

    async def use() -> None:
        with JsonProcess() as process:
            found = await process.query("net", "", given + elements, str(len(given)))
            assert found.inputs[0][1].tolist() == [b"%04d" % row for row in range(ROWS)]
            first = process.pid
            assert first is not None
            answer = Answer("net", "3", "1 of 1", dict(found.inputs))
            body, length = await process.answer_body(answer, Query("net", "", "", [], binary=None))
            assert body[length:] == elements

    asyncio.run(use())


@pytest.mark.parametrize("is_raw", [False, True])
def test_long_lists_of_grpc_are_read_and_written_elsewhere(monkeypatch: pytest.MonkeyPatch, is_raw: bool) -> None:
    def on_the_loop(*arguments: object) -> None:
        raise AssertionError("the event loop would wait for it")

    for name in ("parse_query", "answer_message"):
        monkeypatch.setattr(grpc_server, name, on_the_loop)
    request = pb.ModelInferRequest(model_name="net", id="7")
    request.inputs.add(name="a", datatype="FP16", shape=[ROWS, 2])
    request.inputs.add(name="b", datatype="BYTES", shape=[ROWS])
    texts = [b"%04d" % row for row in range(ROWS)]
    numbers = np.arange(2 * ROWS, dtype=np.float16).reshape(ROWS, 2) / 4
    request.raw_input_contents.extend([numbers.tobytes(), to_bytes(np.array(texts, object))])
    typed = pb.ModelInferRequest(model_name="net")
    typed.inputs.add(name="b", datatype="BYTES", shape=[2 * ROWS]).contents.bytes_contents.extend(2 * texts)

    async def use(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer
            if is_raw:
                answer = await infer(request)
                assert answer.id == "7"
                assert answer.raw_output_contents[0] == (2 * numbers).tobytes()
                assert answer.raw_output_contents[1] == request.raw_input_contents[1]
                return
            with pytest.raises(grpc.RpcError, match="input 'a' is missing"):
                await infer(typed)

    with_service(use, serving_grpc, max_query_bytes=MAX_BYTES)


def test_a_long_answer_of_grpc_has_the_form_of_the_query() -> None:
    numbers = np.arange(MAX_WRITTEN_ELEMENTS + 1, dtype=np.float32)
    found = pb.ModelInferResponse.FromString(answer_bytes(Answer("net", "3", "1 of 1", {"y": numbers}), "7", False))
    assert (found.id, found.outputs[0].datatype, list(found.outputs[0].shape)) == ("7", "FP32", [len(numbers)])
    np.testing.assert_array_equal(found.outputs[0].contents.fp32_contents, numbers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_was_killed_or_is_frozen_costs_one_query(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = body(ROWS)

    async def use() -> None:
        with JsonProcess() as process:
            await process.query("net", "", given, None)
            assert process.pid is not None
            os.kill(process.pid, number)
            if number is signal.SIGSTOP:
                monkeypatch.setattr(json_process, "CALL_SECS", 0.1)
            with pytest.raises(QueryError, match="the process that reads and writes JSON has ended"):
                await process.query("net", "", given, None)
            monkeypatch.undo()
            assert len((await process.query("net", "", given, None)).inputs) == 2

    asyncio.run(use())
