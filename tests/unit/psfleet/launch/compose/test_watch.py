"""How a fleet on an engine is followed to its end, with containers that are told what to be."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError
from support.compose_samples import member

from psfleet.errors import LostPeerError
from psfleet.launch.compose import watch
from psfleet.launch.compose.fleets import Compose
from psfleet.launch.compose.members import Member
from psfleet.launch.compose.watch import Watch


def client(*found: Member) -> Any:
    """An engine with these containers."""
    return SimpleNamespace(containers=SimpleNamespace(list=lambda **query: [one.container for one in found]))


def test_a_container_that_outlives_the_run_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "LEAVE_SECS", 0.3)
    caplog.set_level(logging.WARNING)
    told: list[Mapping[str, Any]] = []
    log = json.dumps({"event": "progress", "step": 9, "time": 1.0}) + "\n"
    Watch(client(member("chief", log, State={"Status": "exited"}), member("worker")), "small", told.append).run()
    assert [entry["step"] for entry in told] == [9]
    (record,) = caplog.records
    assert record.getMessage() == (
        "gave up after 0.3 s waiting for every container to end; last seen: psfleet-small-worker-1 (running)"
    )


def test_an_engine_that_fails_while_a_fleet_is_followed_is_an_error_of_one_line() -> None:
    def fail(**query: Any) -> Any:
        raise APIError("the engine is shutting down")

    compose = Compose()
    compose.__dict__["_client"] = SimpleNamespace(containers=SimpleNamespace(list=fail))
    with pytest.raises(LostPeerError, match="the Docker engine: the engine is shutting down"):
        compose.follow("small", lambda entry: None)
