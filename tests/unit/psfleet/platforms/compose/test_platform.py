"""What the platform asks of a Docker engine to start, copy and remove a fleet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from support.compose_samples import container
from support.scripted_platform import job

from psfleet.errors import BadJobError, LostPeerError, UsageError
from psfleet.launch.platform import Request
from psfleet.platforms.compose.containers import START_TRIES
from psfleet.platforms.compose.platform import Compose
from psfleet.platforms.compose.volume_reader import READER
from psfleet.service import settings

SECS = 20.0
"""Far more than anything here takes."""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))


class Engine:
    """An engine with one chief and one ps; each of its containers notes what is asked of it.

    Attributes:
        asked: Names of the requests, by container, network or volume.
    """

    def __init__(self, **changes: Any) -> None:
        self._lock = threading.Lock()
        self.asked: dict[str, list[str]] = {}
        found = [
            self._noting(container("ps", State={"Status": "running"})),
            self._noting(container("chief", **changes)),
        ]
        self.found = found
        parts = {
            kind: SimpleNamespace(name=kind, remove=self._request(kind, "remove")) for kind in ("network", "volume")
        }
        self.client = SimpleNamespace(
            containers=SimpleNamespace(list=self._listed, create=self._created),
            images=SimpleNamespace(get=lambda name: None),
            networks=SimpleNamespace(list=lambda **query: [parts["network"]]),
            volumes=SimpleNamespace(list=lambda **query: [parts["volume"]]),
        )
        self.chief = found[1]

    def _listed(self, filters: dict[str, str], **query: Any) -> list[Any]:
        key, _, value = filters["label"].partition("=")
        return [each for each in self.found if each.labels.get(key) in ([value] if value else each.labels.values())]

    def leave_reader(self) -> None:
        """Creates what a command leaves that is killed while it reads the volume."""
        mount = {"volume": {"bind": "/out", "mode": "ro"}}
        self._created(job().container.ps_image, volumes=mount, labels={READER: "small"}, network_mode="none")

    def _created(self, image: str, *, volumes: Any, labels: dict[str, str], network_mode: str) -> Any:
        """A container of the engine that mounts the volume and notes its removal."""
        assert (image, list(volumes.values()), network_mode) == (
            job().container.ps_image,
            [{"bind": "/out", "mode": "ro"}],
            "none",
        )

        def remove(force: bool) -> None:
            self.found.remove(reader)

        reader: Any = SimpleNamespace(labels=labels, remove=remove)
        reader.get_archive = lambda path: (iter([f"{path} of the volume".encode()]), {})
        self.found.append(reader)
        return reader

    def _request(self, name: str, request: str) -> Any:
        def note(**options: Any) -> None:
            with self._lock:
                self.asked.setdefault(name, []).append(request)

        return note

    def _noting(self, found: Any) -> Any:
        found.reload = lambda: None
        for request in ("start", "stop", "remove"):
            setattr(found, request, self._request(found.labels["psfleet.role"], request))
        return found

    def platform(self) -> Compose:
        """A platform on this engine."""
        compose = Compose()
        compose.__dict__["_client"] = self.client
        return compose


def failing(engine: Engine, times: int) -> None:
    """Makes the first starts of the chief fail."""
    start, left = engine.chief.start, iter(range(times))

    def fail() -> None:
        start()
        if next(left, None) is not None:
            raise APIError("the port is taken")

    engine.chief.start = fail


def test_a_container_that_does_not_start_is_started_again_and_only_that() -> None:
    engine = Engine()
    failing(engine, START_TRIES - 1)
    engine.platform()._start("small")
    assert engine.asked == {"ps": ["start"], "chief": ["start"] * START_TRIES}


def test_a_fleet_of_which_a_container_never_starts_is_removed() -> None:
    engine = Engine()
    failing(engine, START_TRIES)
    with pytest.raises(UsageError, match="container psfleet-small-chief-1 does not start: the port is taken"):
        engine.platform()._start("small")
    assert engine.asked["ps"] == ["start", "stop", "remove"]
    assert "volume" not in engine.asked, "its results stay"


def test_the_chief_is_started_last_so_that_a_start_which_ends_before_is_made_anew() -> None:
    """The next `psfleet up` attaches to a fleet whose chief was started."""
    engine = Engine()
    ps, start = engine.found[0], engine.found[0].start

    def fail() -> None:
        start()
        assert "chief" not in engine.asked
        raise APIError("the port is taken")

    ps.start = fail
    with pytest.raises(UsageError, match="container psfleet-small-ps-0-1 does not start: the port is taken"):
        engine.platform()._start("small")
    assert engine.asked["ps"] == [*["start"] * START_TRIES, "stop", "remove"]
    assert engine.asked["chief"] == ["stop", "remove"]


@pytest.mark.parametrize("results", [False, True])
def test_what_runs_is_stopped_before_it_is_removed_and_results_go_only_on_request(results: bool) -> None:
    engine = Engine(State={"Status": "exited", "ExitCode": 0})
    assert engine.platform().remove("small", results)
    volume = {"volume": ["remove"]} if results else {}
    assert engine.asked == {"ps": ["stop", "remove"], "chief": ["remove"], "network": ["remove"], **volume}


def test_what_another_command_has_just_removed_is_no_error() -> None:
    """Two commands that follow one fleet both remove it at its end."""
    engine = Engine(State={"Status": "exited", "ExitCode": 0})

    def remove() -> None:
        raise NotFound("network not found")

    engine.client.networks = SimpleNamespace(list=lambda **query: [SimpleNamespace(remove=remove)])
    assert engine.platform().remove("small", results=True)
    assert engine.asked["volume"] == ["remove"]


def test_a_job_that_containers_do_not_run_removes_nothing() -> None:
    trained = {"Env": [f"{settings.JOB}={job().model_dump_json()}"]}
    engine = Engine(State={"Status": "exited", "ExitCode": 0}, Config=trained)
    unprotected = Request(job(checkpoint={"store": "s3://bucket/run"}), Path("job.yaml"), fresh=True)
    with pytest.raises(BadJobError, match=r"tls is false, expected true with checkpoint\.store"):
        engine.platform().apply(unprotected)
    assert engine.asked == {}


def test_results_are_copied_as_far_as_they_are_there() -> None:
    def archive(path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        if path == "/out/history.jsonl":
            raise NotFound("no such file")
        return iter([path.encode()]), {}

    engine = Engine(get_archive=archive)
    with engine.platform().tar(job(), ["checkpoints", "history.jsonl", "report.json"]) as archives:
        assert [b"".join(chunks) for chunks in archives] == [b"/out/checkpoints", b"/out/report.json"]


def test_a_fleet_that_is_removed_while_its_results_are_copied_is_a_lost_peer() -> None:
    """A report that was not copied is not one that the chief did not leave."""

    def gone(*_: str) -> None:
        raise NotFound("No such container: chief")

    engine = Engine(get_archive=gone)
    engine.chief.reload = gone
    with (
        pytest.raises(LostPeerError, match="the Docker engine: No such container: chief"),
        engine.platform().tar(job(), ["report.json"]) as archives,
    ):
        list(archives)


def test_the_volume_of_a_fleet_that_is_down_is_read_by_a_container_that_is_never_started() -> None:
    engine = Engine()
    engine.found.clear()
    assert engine.platform().has_results("small")
    with engine.platform().tar(job(), ["checkpoints"]) as archives:
        assert engine.platform().members("small") == [], "it is no member"
        assert [b"".join(chunks) for chunks in archives] == [b"/out/checkpoints of the volume"]
    assert engine.found == []


def test_a_reader_that_was_left_behind_is_removed_with_the_fleet() -> None:
    engine = Engine()
    engine.found.clear()
    engine.leave_reader()
    engine.platform().remove("small", results=True)
    assert (engine.found, engine.asked["volume"]) == ([], ["remove"])


def test_two_commands_read_one_volume_at_the_same_time() -> None:
    engine = Engine()
    engine.found.clear()
    with (
        engine.platform().tar(job(), ["checkpoints"]) as first,
        engine.platform().tar(job(), ["checkpoints"]) as second,
    ):
        assert len(engine.found) == 2
        assert [len(list(archives)) for archives in (first, second)] == [1, 1]
    assert engine.found == []


def test_a_copy_that_the_engine_breaks_off_is_a_lost_peer() -> None:
    def archive(path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        def chunks() -> Iterator[bytes]:
            yield b"part"
            raise APIError("the engine is shutting down")

        return chunks(), {}

    engine = Engine(get_archive=archive)
    with (
        pytest.raises(LostPeerError, match="the Docker engine: the engine is shutting down"),
        engine.platform().tar(job(), ["checkpoints"]) as archives,
    ):
        list(chain.from_iterable(archives))
