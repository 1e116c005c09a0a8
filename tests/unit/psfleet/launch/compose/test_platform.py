"""What the platform asks of a Docker engine to start, copy and remove a fleet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from support.compose_samples import container
from support.scripted_platform import job

from psfleet.errors import LostPeerError, UsageError
from psfleet.launch.compose.platform import START_TRIES, Compose


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
        parts = {kind: SimpleNamespace(remove=self._request(kind, "remove")) for kind in ("network", "volume")}
        self.client = SimpleNamespace(
            containers=SimpleNamespace(list=lambda **query: found),
            networks=SimpleNamespace(list=lambda **query: [parts["network"]]),
            volumes=SimpleNamespace(list=lambda **query: [parts["volume"]]),
        )
        self.chief = found[1]

    def _request(self, name: str, request: str) -> Any:
        def note(**options: Any) -> None:
            with self._lock:
                self.asked.setdefault(name, []).append(request)

        return note

    def _noting(self, found: Any) -> Any:
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


@pytest.mark.parametrize("results", [False, True])
def test_what_runs_is_stopped_before_it_is_removed_and_results_go_only_on_request(results: bool) -> None:
    engine = Engine(State={"Status": "exited", "ExitCode": 0})
    assert engine.platform().remove("small", results)
    volume = {"volume": ["remove"]} if results else {}
    assert engine.asked == {"ps": ["stop", "remove"], "chief": ["remove"], "network": ["remove"], **volume}


def test_results_are_copied_as_far_as_they_are_there() -> None:
    def archive(path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        if path == "/out/history.jsonl":
            raise NotFound("no such file")
        return iter([path.encode()]), {}

    engine = Engine(get_archive=archive)
    with engine.platform().tar(job(), ["checkpoints", "history.jsonl", "report.json"]) as archives:
        assert [b"".join(chunks) for chunks in archives] == [b"/out/checkpoints", b"/out/report.json"]


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
