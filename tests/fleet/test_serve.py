"""A service on processes: answers over REST and gRPC, errors, concurrent clients, and a version that is replaced."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support import triton
from support.exported_run import BIAS, KERNEL, X, trained, with_checkpoint
from support.rows import first_rows
from support.served import Served, query, serving

from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from psfleet.job.service_access import BETWEEN_GRAPH, IN_GRAPH
from psfleet.processes.ports import free_addresses

MEAN = 2 * (X @ KERNEL + BIAS)
"""Of a member with these weights, and one with three times those."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    for name, factor in (("one", 1), ("two", 3)):
        (folder / name).mkdir()
        trained(folder / name)
        with_checkpoint(folder / name, 5, factor * KERNEL, factor * BIAS)
    with serving(folder, ["one", "two"], "--max-query-bytes", "20000") as service:
        yield service


def test_the_command_says_what_it_starts_and_when_it_is_ready(served: Served) -> None:
    first, second = served.screen.read_text().splitlines()[:2]
    assert first == "net: starting a front and 2 members (importing TensorFlow takes some seconds)"
    assert second.startswith(f"net is ready: http://127.0.0.1:{served.rest_port}/v2/models/net, gRPC port")


def test_an_answer_over_rest_is_the_mean_of_the_members(served: Served) -> None:
    with served.client() as client:
        found, answer = client.infer(X)
        np.testing.assert_allclose(found, MEAN, rtol=1e-6)
        del answer["outputs"]
        assert answer == {
            "model_name": "net", "model_version": "5", "id": "7", "parameters": {"members": "2 of 2"}
        }  # fmt: skip
        status, metadata = client.status_and_content("GET", "/v2/models/net")
        assert (status, metadata["versions"], metadata["inputs"], metadata["outputs"]) == (
            200,
            ["5"],
            [{"name": "input_0", "datatype": "FP32", "shape": [-1, 2]}],
            [{"name": "output_0", "datatype": "FP32", "shape": [-1, 3]}],
        )
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/net/ready", "/v2/models/net/versions/5/ready"):
            assert client.status_and_content("GET", path)[0] == 200, path
        assert client.status_and_content("GET", "/v2")[1]["name"] == "psfleet"


@pytest.mark.parametrize("is_raw", [True, False])
def test_an_answer_over_grpc_has_the_form_of_the_query(served: Served, is_raw: bool) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(pb.ServerReadyRequest()).ready
        assert stub.ModelReady(pb.ModelReadyRequest(name="net", version="5")).ready
        assert not stub.ModelReady(pb.ModelReadyRequest(name="net", version="4")).ready
        assert list(stub.ModelMetadata(pb.ModelMetadataRequest(name="net")).inputs[0].shape) == [-1, 2]
        request = pb.ModelInferRequest(model_name="net", id="9")
        request.inputs.add(name="input_0", datatype="FP32", shape=X.shape)
        if is_raw:
            request.raw_input_contents.append(X.tobytes())
        else:
            request.inputs[0].contents.fp32_contents.extend(X.ravel())
        answer = stub.ModelInfer(request, timeout=10)
        assert (answer.model_version, answer.id, answer.parameters["members"].string_param) == ("5", "9", "2 of 2")
        (output,) = answer.outputs
        found = np.frombuffer(answer.raw_output_contents[0], np.float32) if is_raw else output.contents.fp32_contents
        np.testing.assert_allclose(np.reshape(found, output.shape), MEAN, rtol=1e-6)


def test_the_client_of_the_documentation_gets_answers(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    client, _ = clients_of_the_documentation()
    url = "http://127.0.0.1:8000/v2/models/digits"
    assert url in client
    exec(client.replace(url, f"http://127.0.0.1:{served.rest_port}/v2/models/net"), {})
    bias = (2 * BIAS).tolist()
    assert capsys.readouterr().out == f"[2, 3] {bias * 2}\nstep 5 by 2 of 2 members\n"


def test_the_grpc_client_of_the_documentation_gets_answers(served: Served, tmp_path: Path) -> None:
    _, client = clients_of_the_documentation()
    for shown, own in (
        ("127.0.0.1:8001", f"127.0.0.1:{served.grpc_port}"), ("[1, 28, 28, 1]", "[1, 2]"), ('"digits"', '"net"')
    ):  # fmt: skip
        assert shown in client
        client = client.replace(shown, own)
    (tmp_path / "token").write_text("not asked for here\n")
    # In a process of its own: its messages have the names of psfleet's.
    done = subprocess.run([sys.executable, "-c", client], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{2 * BIAS[np.newaxis]}\n"), done.stderr


def clients_of_the_documentation() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_tritonclient_gets_answers(served: Served) -> None:
    found = triton.answers(served.rest_port, served.grpc_port, X)
    np.testing.assert_allclose(found, [MEAN, MEAN], rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        ("/v2/models/other/infer", query(X), 404, "model 'other' is unknown, expected 'net'"),
        ("/v2/models/net/versions/4/infer", query(X), 404, "version '4' is not served, expected '5' or none"),
        ("/v2/models/net/infer", query(X, name="x"), 400, "input 'x' is unknown, expected input_0"),
        ("/v2/models/net/infer", query(X, "INT32"), 400, "has a fraction"),
        ("/v2/models/net/infer", query(X, "FP64"), 400, "has datatype FP64, expected FP32"),
        ("/v2/models/net/infer", query(X[:, :1]), 400, "has shape [3, 1], expected [-1, 2]"),
        ("/v2/models/net/infer", query(X[:0]), 400, "at least one row"),
        ("/v2/models/net/infer", b"{", 400, "the body is not JSON"),
        ("/v2/models/net/infer", {}, 400, "the body has no list `inputs`"),
        ("/v2/models/net/infer", query(np.zeros([5000, 2])), 413, "the body is larger than 20000 bytes"),
        ("/v2/other", {}, 404, "Not Found"),
    ],
)
def test_a_bad_query_gets_the_error_of_the_protocol(
    served: Served, path: str, content: Any, status: int, message: str
) -> None:
    given = query([[0.5, 1]] * 3, "INT32") if message == "has a fraction" else content
    with served.client() as client:
        found, answer = client.status_and_content("POST", path, given)
        assert (found, message in answer["error"]) == (status, True), answer
        assert client.status_and_content("GET", "/v2/health/ready")[0] == 200


def test_a_bad_query_over_grpc_gets_a_status(served: Served) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer
        request = pb.ModelInferRequest(model_name="other")
        for change, code in (
            (lambda: None, grpc.StatusCode.NOT_FOUND),
            (lambda: setattr(request, "model_name", "net"), grpc.StatusCode.INVALID_ARGUMENT),
            (lambda: request.raw_input_contents.append(bytes(30000)), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            change()
            with pytest.raises(grpc.RpcError) as caught:
                infer(request, timeout=10)
            assert caught.value.code() == code


def test_nan_passes(served: Served) -> None:
    with served.client() as client:
        found, _ = client.infer([[np.nan, 1], [1, 2]])
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], MEAN[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "clients", "each"),
    first_rows([(BETWEEN_GRAPH, 8, 25), (BETWEEN_GRAPH, 16, 625), (IN_GRAPH, 16, 625)]),
)
def test_concurrent_queries_get_their_own_answers_through_a_swap_of_versions(
    tmp_path: Path, mode: str, clients: int, each: int
) -> None:
    """Step s has s + 1 times the weights, so that each answer shows with which it was made."""
    trained(tmp_path)
    (address,) = free_addresses(1)
    with serving(tmp_path, ["."], "--members", mode, "--metrics-port", str(address.port)) as service:

        def ask(client_number: int) -> list[str]:
            versions = []
            with service.client() as client:
                for number in range(each):
                    if client_number == 0 and number in (each // 3, 2 * each // 3):
                        step = 10 * (len(set(versions)) + number)
                        with_checkpoint(tmp_path, step, (step + 1) * KERNEL, (step + 1) * BIAS)
                    rows = np.array([[client_number, number]] * (1 + number % 3), np.float32)
                    found, answer = client.infer(rows)
                    versions.append(answer["model_version"])
                    expected = (int(versions[-1]) + 1) * (rows @ KERNEL + BIAS)
                    np.testing.assert_allclose(found, expected, rtol=1e-5)
            return versions

        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(ask, range(clients)))
        assert [len(versions) for versions in found] == [each] * clients
        newest = max(int(path.name.split("-")[0]) for path in (tmp_path / "checkpoints").iterdir())
        service.await_version(str(newest))
        page = service.metrics(address.port)
        assert 'psfleet_queries_total{index="0",protocol="rest",result="done",role="front",run="net"}' in page
        assert 'psfleet_answers_total{index="0",members="1",role="front",run="net"}' in page
