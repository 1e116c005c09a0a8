"""REST and gRPC of a service in this process, whose members answer at once."""

from __future__ import annotations

import json
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import ClientSession
from support.inference_service import service_without_members, with_service

from psfleet.errors import LostPeerError
from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.access import ClientAccess
from psfleet.inference.grpc_server import serving_grpc
from psfleet.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from psfleet.inference.rest import JSON_LENGTH, serving_rest

TOKEN = "a-token-of-many-characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
A = np.array([[1, 2], [3, 4]], np.float16)
TENSORS = [
    {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["x", "y"]},
    {"name": "a", "datatype": "FP16", "shape": [2, 2], "data": [[1, 2], [3, 4]]},
]


def posted(body: bytes, headers: dict[str, str] | None = None, token: str = "") -> tuple[int, dict[str, Any], bytes]:
    """Status, JSON, and what is behind it, of the answer to a query."""

    async def use(port: int) -> tuple[int, dict[str, Any], bytes]:
        async with (
            ClientSession() as client,
            client.post(f"http://127.0.0.1:{port}/v2/models/net/infer", data=body, headers=headers) as answer,
        ):
            content = await answer.read()
            end = int(answer.headers.get(JSON_LENGTH, len(content)))
            return answer.status, json.loads(content[:end]), content[end:]

    return with_service(use, access=ClientAccess(token))


def test_inputs_in_any_order_give_outputs_as_json() -> None:
    status, answer, _ = posted(json.dumps({"inputs": TENSORS}).encode())
    assert status == 200, answer
    assert answer["outputs"] == [
        {"name": "twice", "datatype": "FP16", "shape": [2, 2], "data": [2, 4, 6, 8]},
        {"name": "same", "datatype": "BYTES", "shape": [2], "data": ["x", "y"]},
    ]


@pytest.mark.parametrize("is_all", [True, False])
def test_tensors_in_binary_form_follow_the_json(is_all: bool) -> None:
    inputs = [{**TENSORS[1], "parameters": {"binary_data_size": 8}}, TENSORS[0]]
    del inputs[0]["data"]
    content: dict[str, Any] = {"inputs": inputs}
    if is_all:
        content["parameters"] = {"binary_data_output": True}
    else:
        content["outputs"] = [{"name": "twice", "parameters": {"binary_data": True}}, {"name": "same"}]
    header = json.dumps(content).encode()
    status, answer, behind = posted(header + A.tobytes(), {JSON_LENGTH: str(len(header))})
    assert status == 200, answer
    sizes = [each.get("parameters") for each in answer["outputs"]]
    assert sizes == [{"binary_data_size": 8}, {"binary_data_size": 10} if is_all else None]
    np.testing.assert_array_equal(np.frombuffer(behind[:8], np.float16).reshape(2, 2), 2 * A)


@pytest.mark.parametrize(
    ("content", "length", "message"),
    [
        ({"inputs": TENSORS[:1]}, None, "input 'a' is missing"),
        ({"inputs": [*TENSORS, TENSORS[0]]}, None, "input 'b' is given twice"),
        ({"inputs": [TENSORS[0], {**TENSORS[1], "shape": [1, 4]}]}, None, "has shape [1, 4], expected [-1, 2]"),
        ({"inputs": [{**TENSORS[0], "shape": [1], "data": ["x"]}, TENSORS[1]]}, None, "inputs have 1, 2 rows"),
        ({"inputs": TENSORS, "outputs": [{"name": "z"}]}, None, "output 'z' is unknown, expected twice, same"),
        ({"inputs": [{**TENSORS[1], "parameters": {"binary_data_size": 8}}]}, None, "binary_data_size 8"),
        ({"inputs": [{**TENSORS[1], "name": 5}]}, None, "a tensor has name 5, expected a str"),
        ({"inputs": [7]}, None, "a tensor has name None"),
        ({"inputs": TENSORS, "outputs": 5}, None, "outputs is 5, expected a list"),
        ([], None, "the body has no list `inputs`"),
        ({"inputs": TENSORS}, "100000", "the length of the JSON is 100000"),
        ({"inputs": TENSORS}, "x", "the length of the JSON is x"),
        ({"inputs": TENSORS}, "9" * 5000, "the length of the JSON is 999"),
    ],
)
def test_a_body_that_is_no_query_is_refused(content: Any, length: str | None, message: str) -> None:
    status, answer, _ = posted(json.dumps(content).encode(), {} if length is None else {JSON_LENGTH: length})
    assert (status, message in answer["error"]) == (400, True), answer


@pytest.mark.parametrize("depth", [900, 4000])
def test_lists_that_are_nested_too_deeply_are_refused(depth: int) -> None:
    tensor = b'{"inputs": [{"name": "a", "datatype": "FP16", "shape": [1], "data": %s}]}'
    status, answer, _ = posted(tensor % (b"[" * depth + b"]" * depth))
    assert status == 400, answer


def test_a_body_that_is_not_compressed_as_its_header_says_is_refused() -> None:
    status, answer, _ = posted(b"no gzip", {"Content-Encoding": "gzip"})
    assert (status, answer) == (400, {"error": "the body cannot be read: Can not decode content-encoding: gzip"})


def test_another_method_gets_those_that_the_path_has() -> None:
    async def use(port: int) -> tuple[int, str]:
        url = f"http://127.0.0.1:{port}/v2/models/net/infer"
        async with ClientSession() as client, client.get(url) as answer:
            return answer.status, answer.headers.get("Allow", "")

    assert with_service(use) == (405, "POST")


def test_rest_needs_the_token_for_all_but_health() -> None:
    body = json.dumps({"inputs": TENSORS}).encode()
    for header in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer ü"}):
        status, answer, _ = posted(body, header, TOKEN)
        assert (status, answer) == (401, {"error": "the header Authorization has no valid token"})
    assert posted(body, BEARER, TOKEN)[0] == 200

    async def health(port: int) -> int:
        async with ClientSession() as client, client.get(f"http://127.0.0.1:{port}/v2/health/ready") as answer:
            return answer.status

    assert with_service(health, access=ClientAccess(TOKEN)) == 200


def test_grpc_takes_raw_tensors_and_needs_the_token_for_all_but_health() -> None:
    request = pb.ModelInferRequest(model_name="net", id="5")
    request.inputs.add(name="a", datatype="FP16", shape=[2, 2])
    request.inputs.add(name="b", datatype="BYTES", shape=[2])
    request.raw_input_contents.extend([A.tobytes(), b"\x01\0\0\0x\x01\0\0\0y"])

    async def use(port: int) -> list[Any]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = GRPCInferenceServiceStub(channel)
            assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
            with pytest.raises(grpc.RpcError) as caught:
                await stub.ModelInfer(request)
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            return [caught.value.code(), await stub.ModelInfer(request, metadata=metadata)]

    code, answer = with_service(use, serving_grpc, ClientAccess(TOKEN))
    assert code == grpc.StatusCode.UNAUTHENTICATED
    assert (answer.id, answer.model_version, answer.parameters["members"].string_param) == ("5", "3", "1 of 1")
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.float16), 2 * A.ravel())
    assert answer.raw_output_contents[1] == b"\x01\0\0\0x\x01\0\0\0y"


def test_grpc_does_not_read_messages_without_the_token() -> None:
    request = pb.ModelInferRequest(model_name="net", raw_input_contents=[bytes(20_000)])

    async def use(port: int) -> list[grpc.StatusCode]:
        codes = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for metadata in ((), (("authorization", f"Bearer {TOKEN}"),)):
                with pytest.raises(grpc.RpcError) as caught:
                    await GRPCInferenceServiceStub(channel).ModelInfer(request, metadata=metadata)
                codes.append(caught.value.code())
        return codes

    found = with_service(use, serving_grpc, ClientAccess(TOKEN))
    assert found == [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED]


def test_a_message_that_cannot_be_decoded_is_refused_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def use(port: int) -> grpc.RpcError:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as caught:
                await infer(b"\xff\xff")
            return caught.value

    error = with_service(use, serving_grpc)
    assert (error.code(), not caplog.records) == (grpc.StatusCode.INVALID_ARGUMENT, True), error
    assert "cannot be decoded" in error.details()


def test_an_error_is_short_enough_for_the_trailers_of_grpc() -> None:
    request = pb.ModelInferRequest(model_name="ü" * 4000)

    async def use(port: int) -> grpc.RpcError:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError) as caught:
                await GRPCInferenceServiceStub(channel).ModelInfer(request)
            return caught.value

    error = with_service(use, serving_grpc)
    assert error.code() is grpc.StatusCode.NOT_FOUND, error
    assert error.details().startswith("model 'üü")


@pytest.mark.parametrize("protocol", [serving_rest, serving_grpc])
def test_a_port_in_use_is_named(protocol: Any) -> None:
    async def use(port: int) -> None:
        with pytest.raises(LostPeerError, match=f"port {port} of 127.0.0.1 is not available"):
            async with protocol(service_without_members(), "127.0.0.1", port, ClientAccess()):
                pytest.fail("it serves on a port in use")

    with_service(use, protocol)
