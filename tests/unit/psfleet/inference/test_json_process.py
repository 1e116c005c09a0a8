"""Large JSON: read and written in another process, while the event loop does other things."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession
from support.inference_service import with_service

from psfleet.inference import json_process
from psfleet.inference.json_process import MAX_READ_BYTES, MAX_WRITTEN_ELEMENTS, JsonProcess
from psfleet.inference.query import Answer, Query
from psfleet.inference.rest_messages import answer_body, parse_query
from psfleet.inference.tensors import QueryError

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
