"""`psfleet serve --on kubernetes`: a front and its members as pods."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from support import triton
from support.exported_run import X
from support.kind_fleet import START_SECS, Space
from support.kind_service import TOKEN, KindService, trained_service
from support.rows import first_rows
from support.served import query
from support.visitors import STRANGER, address, opens, pod_manifest

from psfleet.job.service_access import BETWEEN_GRAPH, IN_GRAPH
from psfleet.polling import wait_until

pytestmark = pytest.mark.timeout(900)

TIMEOUT_SECS = 10
"""Of queries: a pod that starts takes most of the machine."""
PORTS = ("2222", "2225", "8000", "8001")
RUNS = {BETWEEN_GRAPH: "plain", IN_GRAPH: "sealed"}
"""Names of the runs whose models are served."""
KINDS = "deployments,replicasets,pods,services,networkpolicies,secrets,configmaps,serviceaccounts,pvc"


@pytest.fixture(scope="module", params=first_rows([BETWEEN_GRAPH, IN_GRAPH]), ids=["plain", "tls"])
def service(request: pytest.FixtureRequest, shared_space: Space) -> Iterator[KindService]:
    """The second one has TLS, and one graph over both members."""
    mode, tls = request.param, request.param == IN_GRAPH
    found = trained_service(shared_space, RUNS[mode], tls=tls)
    said = served(found, mode)
    assert f"{found.model} is ready: http://{found.name}:8000/v2/models/{found.model}, gRPC port 8001" in said
    with found.connected():
        yield found


def served(service: KindService, mode: str, *options: str, code: int = 0) -> str:
    timeout = ("--timeout-secs", str(TIMEOUT_SECS))
    return service.serve("--replicas", "2", "--members", mode, *timeout, *options, code=code)


@contextmanager
def asking(service: KindService) -> Iterator[list[str]]:
    """Clients that ask one query after the other, and the versions of their answers; none has failed at the end."""
    versions: list[str] = []
    problems: list[object] = []
    ends = threading.Event()

    def ask() -> None:
        with service.client() as client:
            while not ends.is_set():
                status, answer = client.status_and_content("POST", f"/v2/models/{service.model}/infer", query(X))
                if status == 200:
                    versions.append(answer["model_version"])
                else:
                    problems.append((status, answer))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield versions
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert versions
    assert not problems


def test_tritonclient_gets_answers_over_both_protocols(service: KindService) -> None:
    over_rest, over_grpc = triton.answers(service.rest_port, service.grpc_port, X, service.model, TOKEN)
    np.testing.assert_allclose(over_rest, over_grpc, rtol=1e-6)
    assert np.shape(over_rest) == (3, 3)
    assert service.version() == "3"


def test_the_same_command_finds_the_service_and_another_one_is_refused(
    service: KindService, request: pytest.FixtureRequest
) -> None:
    mode = request.node.callspec.params["service"]
    before = service.pod("front")["metadata"]["uid"]
    assert "is ready" in served(service, mode)
    assert service.pod("front")["metadata"]["uid"] == before
    refused = served(service, mode, "--max-batch-rows", "7", code=64)
    assert f"fleet {service.name} runs another version of the service: `psfleet down {service.name}`" in refused
    rows = json.loads(service.space.psfleet("status", service.name, "--json"))
    shown = [(row["role"], row["index"], row["state"], row["health"]) for row in rows]
    assert shown == [
        ("front", 0, "running", "healthy"), ("member", 0, "running", "healthy"), ("member", 1, "running", "healthy")
    ]  # fmt: skip
    assert "serves step 3" in service.space.psfleet("logs", service.name, "member-1")


def test_a_wrong_token_is_refused_and_the_right_one_is_in_the_secret_alone(service: KindService) -> None:
    with service.client("another-token-of-many") as client:
        status, _ = client.status_and_content("POST", f"/v2/models/{service.model}/infer", query(X))
    assert status == 401
    encoded = b64encode(TOKEN.encode()).decode()
    found = {
        kind: [word in service.space.kubectl("get", kind, "-o", "json") for word in (TOKEN, encoded)]
        for kind in KINDS.split(",")
    }
    assert {kind for kind, words in found.items() if any(words)} == {"secrets"}
    assert TOKEN not in service.space.psfleet("logs", service.name, "--json")


def test_clients_reach_the_front_alone_and_nobody_tensorflow(
    service: KindService, request: pytest.FixtureRequest
) -> None:
    space, name = service.space, f"stranger-{service.model}"
    space.apply(name, pod_manifest("stranger", "sleep", "3600"))
    address(space, "stranger")
    front, *members = (service.pod(each, index) for each, index in (("front", 0), ("member", 0), ("member", 1)))
    hosts = [pod["status"]["podIP"] for pod in (front, *members)]
    wait_until(
        lambda: [opens(space, host, *PORTS) for host in hosts], START_SECS, "the policies",
        done=[["8000", "8001"], [], []].__eq__, poll_secs=1,
    )  # fmt: skip
    assert opens(space, service.name, "8000") == ["8000"], "by the name of the Service"
    words = ("exec", members[0]["metadata"]["name"], "--", "python", "-c", STRANGER.read_text())
    data = "2225" if request.node.callspec.params["service"] == IN_GRAPH else "2222"
    assert space.kubectl(*words, hosts[0], *PORTS).split() == [data]
    assert space.kubectl(*words, hosts[2], *PORTS).split() == [], "members do not reach each other"
    space.kubectl("delete", "pod", "stranger", "--wait=false")


def test_no_query_fails_while_a_member_is_deleted_or_killed_and_it_comes_back(service: KindService) -> None:
    old = service.pod("member", 1)["metadata"]
    joins = len(service.joined(1))
    with asking(service):
        service.space.kubectl("delete", "pod", old["name"], "--wait=false")
        service.await_join(1, joins)
        new = service.pod("member", 1)["metadata"]
        assert new["uid"] != old["uid"]
        joins = len(service.joined(1))
        kill = "kill -9 $(cat /proc/1/task/1/children)"
        service.space.kubectl("exec", new["name"], "--", "sh", "-c", kill, check=False)
        service.await_join(1, joins)
    assert service.pod("member", 1)["metadata"]["uid"] == new["uid"], "the kubelet has started it again"


def test_a_newer_checkpoint_is_served_without_a_failed_query(service: KindService) -> None:
    with asking(service) as versions:
        service.space.psfleet("up", str(service.models[0]), "--set", "train.steps=6", secs=START_SECS)
        wait_until(lambda: versions[-1:], START_SECS, "version 6", done=["6"].__eq__, poll_secs=0.5)
    assert set(versions) == {"3", "6"}


@pytest.mark.extended
def test_a_frozen_process_is_started_again(service: KindService) -> None:
    pod, joins = service.pod("member", 0)["metadata"]["name"], len(service.joined(0))
    with asking(service):
        freeze = "kill -STOP $(cat /proc/1/task/1/children)"
        service.space.kubectl("exec", pod, "--", "sh", "-c", freeze)
        service.await_join(0, joins)


@pytest.mark.extended
def test_a_front_that_is_deleted_comes_back_with_its_members(service: KindService) -> None:
    old, version = service.pod("front")["metadata"], service.version()
    service.space.kubectl("delete", "pod", old["name"], "--wait=false")
    wait_until(
        lambda: service.pod("front")["metadata"]["uid"] != old["uid"], START_SECS, "another pod of the front",
        poll_secs=1,
    )  # fmt: skip
    for index in (0, 1):
        service.await_join(index, 0)
    with service.connected():
        assert service.version() == version != ""


def test_down_removes_all_but_the_results_of_the_run(service: KindService) -> None:
    service.space.psfleet("down", service.name, secs=START_SECS)
    left = set(service.space.kubectl("get", KINDS, "-o", "name").split())
    own = {"configmap/kube-root-ca.crt", "serviceaccount/default", "serviceaccount/psfleet-user"}
    # The services of both rows are in one namespace; only one is up at a time.
    claims = {f"persistentvolumeclaim/{name}" for name in RUNS.values()}
    assert {name for name in left - own - claims if not name.startswith("pod/stranger")} == set()
    assert f"persistentvolumeclaim/{service.model}" in left


@pytest.mark.extended
def test_the_command_ends_with_the_first_pod_that_fails_and_leaves_nothing(space: Space) -> None:
    found = trained_service(space, "broken")
    (job,) = found.models
    text = job.read_text()
    job.write_text(text.replace("container:", "container:\n  worker_image: psfleet-worker:missing"))
    said = found.serve(code=75)
    assert "does not start: ErrImagePull" in said or "does not start: ImagePullBackOff" in said, said
    assert f"{found.name}" not in space.kubectl("get", KINDS, "-o", "name")
