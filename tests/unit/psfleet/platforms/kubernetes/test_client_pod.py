"""Clients of a standing fleet in pods: what is printed, how they end, and that nothing of them stays."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.standing_api import READY, StandingApi, ended

from psfleet.errors import DeadlineError, LostPeerError, StoppedError, UsageError
from psfleet.job.fleet_file import FleetFile
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.client_log import ClientLog, time_of
from psfleet.platforms.kubernetes.client_pod import POLL_SECS
from psfleet.platforms.kubernetes.standing import KubernetesFleets


@pytest.fixture
def lab(standing_api: StandingApi) -> Iterator[KubernetesFleets]:
    """A fleet that is up; what clients leave behind is an error."""
    fleets = KubernetesFleets()
    content = {"name": "lab", "deadlines": {"start_secs": 0.1}}
    fleets.up(FleetFile.model_validate(content))
    before = set(standing_api.objects)
    yield fleets
    assert set(standing_api.objects) == before


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "client"
    folder.mkdir()
    (folder / "points.bin").write_bytes(b"\xff")
    path = folder / "client.py"
    path.write_text("print(1)\n")
    return path


def test_the_output_and_the_exit_code_of_a_client_are_passed_on(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    standing_api.log, standing_api.client = ["one", "two  words"], ended(3)
    seen: dict[str, Any] = {}
    answer = standing_api.answer

    def noted(method: str, url: str, body: Any) -> tuple[int, Any]:
        if method == "DELETE":
            # As it was while the client ran.
            seen.update({kind: each for (kind, name), each in standing_api.objects.items() if "lab-client-" in name})
        return answer(method, url, body)

    standing_api.answer = noted  # type: ignore[method-assign]
    assert lab.run("lab", script, ["--steps", "5"]) == 3
    assert capsys.readouterr().out == "one\ntwo  words\n"
    pod, files = seen["pods"], seen["configmaps"]
    assert pod["spec"]["containers"][0]["command"][-3:] == ["/program/client.py", "--steps", "5"]
    assert (set(files["data"]), set(files["binaryData"])) == ({"client.py"}, {"points.bin"})
    assert files["metadata"]["labels"] == pod["metadata"]["labels"]
    (owner,) = files["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Pod", pod["metadata"]["name"])


def test_clients_of_one_fleet_have_pods_of_their_own(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_api.client = ended(0)
    names: list[str] = []

    def log(cluster: Cluster, pod: str, *words: Any, **options: Any) -> Iterator[str]:
        if pod not in names:
            names.append(pod)
            if len(names) == 1:
                assert lab.run("lab", script, []) == 0
                assert ("pods", pod) in standing_api.objects, "the other client has ended, and this one has not"
        return iter(())

    monkeypatch.setattr(Cluster, "log", log)
    assert lab.run("lab", script, []) == 0
    assert names == ["lab-client-0", "lab-client-1"]


def test_a_client_whose_name_another_one_has_by_now_leaves_that_one_alone(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_api.client = READY

    def log(cluster: Cluster, pod: str, *words: Any, **options: Any) -> Iterator[str]:
        (volume,) = [v for v in standing_api.objects["pods", pod]["spec"]["volumes"] if v["name"] == "program"]
        volume["configMap"]["name"] = "of-another"
        return iter(())

    monkeypatch.setattr(Cluster, "log", log)
    with pytest.raises(LostPeerError, match="pod lab-client-0 was deleted while the client ran"):
        lab.run("lab", script, [])
    del standing_api.objects["pods", "lab-client-0"]


def test_a_client_that_is_killed_for_its_memory_is_told_about(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    standing_api.client = ended(137, "OOMKilled")
    with caplog.at_level(logging.ERROR):
        assert lab.run("lab", script, []) == 137
    assert "OOMKilled: out of memory, the limit is 2Gi" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_client_and_deletes_it(
    lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = signal.getsignal(number)

    def log(cluster: Cluster, *words: Any, **options: Any) -> Iterator[str]:
        yield "2026-01-01T00:00:00Z begun"
        os.kill(os.getpid(), number)
        yield "2026-01-01T00:00:01Z never"

    monkeypatch.setattr(Cluster, "log", log)
    with pytest.raises(StoppedError) as raised:
        lab.run("lab", script, [])
    assert raised.value.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_a_second_signal_does_not_keep_a_client_from_being_deleted(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_api.client = READY
    delete = Cluster.delete_pod

    def interrupted(cluster: Cluster, name: str, uid: str | None = None) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        delete(cluster, name, uid)

    def log(cluster: Cluster, *words: Any, **options: Any) -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return iter(())

    monkeypatch.setattr(Cluster, "delete_pod", interrupted)
    monkeypatch.setattr(Cluster, "log", log)
    with pytest.raises(StoppedError):
        lab.run("lab", script, [])


def test_a_signal_waits_for_the_answer_to_the_request_that_creates_the_pod(
    lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, created = Cluster.create_pod, []

    def interrupted(cluster: Cluster, content: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        created.append(create(cluster, content))
        return created[-1]

    monkeypatch.setattr(Cluster, "create_pod", interrupted)
    with pytest.raises(StoppedError):
        lab.run("lab", script, [])
    assert len(created) == 1, "it could appear after nothing was found that is to be deleted"


def test_a_log_that_ends_at_once_is_not_asked_for_without_a_pause(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_api.client = READY
    times: list[float] = []

    def log(cluster: Cluster, *words: Any, **options: Any) -> Iterator[str]:
        times.append(time.monotonic())
        if len(times) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return iter(())

    monkeypatch.setattr(Cluster, "log", log)
    with pytest.raises(StoppedError):
        lab.run("lab", script, [])
    assert times[1] - times[0] >= POLL_SECS


def test_a_client_that_does_not_start_says_why(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, caplog: pytest.LogCaptureFixture
) -> None:
    standing_api.client = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    with pytest.raises(DeadlineError, match=r"pod lab-client-\w+ to start; last seen: ImagePullBackOff: no such image"):
        lab.run("lab", script, [])
    assert [text.partition(" waits: ")[2] for text in caplog.messages] == ["ImagePullBackOff: no such image"]


def test_a_client_whose_pod_is_deleted_is_lost(
    standing_api: StandingApi, lab: KubernetesFleets, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing_api.client = READY

    def log(cluster: Cluster, pod: str, *words: Any, **options: Any) -> Iterator[str]:
        del standing_api.objects["pods", pod]
        return iter(())

    monkeypatch.setattr(Cluster, "log", log)
    with pytest.raises(LostPeerError, match=r"pod lab-client-\w+ was deleted while the client ran"):
        lab.run("lab", script, [])


def test_a_folder_that_is_too_large_is_refused(standing_api: StandingApi, lab: KubernetesFleets, script: Path) -> None:
    (script.parent / "data.bin").write_bytes(bytes(1_000_001))
    standing_api.requests.clear()
    with pytest.raises(UsageError, match="expected less for a ConfigMap: put the client into a folder of its own"):
        lab.run("lab", script, [])
    assert standing_api.requests == []


def test_a_log_whose_connection_broke_goes_on_where_it_was() -> None:
    lines = [f"2026-01-01T00:00:0{second}Z {word}" for second, word in ((1, "a"), (1, "b"), (2, ""), (3, "c"))]

    class Broken:
        num_lines = 2

        def log(self, pod: str, container: str, **options: Any) -> Iterator[str]:
            return iter([*lines[: self.num_lines], *(["failed to rotate"] if options["follow"] else [])])

    cluster = Broken()
    log = ClientLog(cluster, "x")  # type: ignore[arg-type]
    assert list(log.lines(follow=True)) == ["a", "b", "failed to rotate"]
    cluster.num_lines = 4
    assert list(log.lines(follow=False)) == ["", "c"]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000001Z"),
        ("2026-01-01T00:00:00.1Z", "2026-01-01T00:00:00.12Z"),
        ("2026-01-01T02:00:00.9+02:00", "2026-01-01T00:00:01Z"),
    ],
)
def test_times_are_compared_to_the_nanosecond(earlier: str, later: str) -> None:
    first, second = time_of(earlier), time_of(later)
    assert first is not None
    assert second is not None
    assert first < second
    assert time_of("unable") is None
