"""Calls of a handle to a chief that does not answer, and to one whose place another run has taken."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.container_run import PS, UP, WORKER, Containers, serving
from support.live_chief import LiveChief, live
from support.rows import first_rows
from support.scripted_platform import member

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.control import credentials, liveness
from psfleet.control import server as control_server
from psfleet.errors import LostPeerError, NoAnswerError
from psfleet.handle import channel, container_channel, starting
from psfleet.platforms.local.control_file import ControlFile

ANSWER_SECS = 1.0
CALL_SECS = 20.0
CALLS: list[tuple[str, Callable[[psfleet.Run], Any]]] = [
    ("save", lambda run: run.save()),
    ("train", lambda run: run.train(5).result(CALL_SECS)),
    ("evaluate", lambda run: run.evaluate().result(CALL_SECS)),
    ("gradient", lambda run: run.gradient()),
    ("getweights", lambda run: run.weights.get()),
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tests are short; the proportions are those of the product."""
    monkeypatch.setattr(liveness, "ANSWER_SECS", ANSWER_SECS)
    monkeypatch.setattr("psfleet.control.relay.ANSWER_SECS", ANSWER_SECS)
    monkeypatch.setattr("psfleet.control.relay.POLL_SECS", 0.05)
    monkeypatch.setattr(liveness, "ASK_SECS", 0.05)
    monkeypatch.setattr("psfleet.control.run_client.UNANSWERED_SECS", 0.2)
    monkeypatch.setattr(channel, "LOOK_SECS", 0.5)
    options = (*credentials.CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", 300))
    monkeypatch.setattr(credentials, "CHANNEL_OPTIONS", options)


@pytest.fixture
def frozen_port() -> Iterator[str]:
    """`host:port` of a process that is frozen: its machine accepts connections, and nobody reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def freeze(monkeypatch: pytest.MonkeyPatch) -> Callable[[LiveChief], None]:
    """Has a chief answer nothing from its next look at the fleet on."""
    is_frozen = threading.Event()
    check = control_server._Health.Check

    def unanswered(self: Any, request: Any, context: Any) -> Any:
        if is_frozen.is_set():
            threading.Event().wait(2 * ANSWER_SECS)
        return check(self, request, context)

    def frozen(chief: LiveChief) -> None:
        chief.moves, chief.looks = False, is_frozen.set

    monkeypatch.setattr(control_server._Health, "Check", unanswered)
    return frozen


@pytest.mark.parametrize(("name", "call"), first_rows(CALLS), ids=[name for name, _ in CALLS])
def test_a_chief_that_was_frozen_before_a_call_is_given_up(
    tmp_path: Path, frozen_port: str, name: str, call: Callable[[psfleet.Run], Any]
) -> None:
    with live(tmp_path, held_at=40) as chief:
        run = psfleet.attach(chief.out)
        found = ControlFile.read(chief.out)
        assert found is not None
        ControlFile(found.run, found.launcher, frozen_port).write(chief.out)
        expected = rf"`{name}` is given up, .*: the chief \(worker 0\) at {frozen_port} does not answer, \d+ s after"
        with pytest.raises(NoAnswerError, match=expected):
            call(run)
        assert run.status == "no answer from the chief"
        assert run.step == 0, "it has logged none"


def test_a_chief_that_freezes_during_a_call_is_given_up(tmp_path: Path, freeze: Callable[[LiveChief], None]) -> None:
    with live(tmp_path) as chief:
        freeze(chief)
        with pytest.raises(NoAnswerError, match=r"`save` is given up, .* its process is frozen or cut off"):
            psfleet.attach(tmp_path).save()


def test_a_call_that_takes_long_is_not_given_up(tmp_path: Path) -> None:
    """The chief answers that it is there, while the checkpoint does not come."""
    with live(tmp_path) as chief:
        chief.moves = False
        move = threading.Timer(2 * ANSWER_SECS, lambda: setattr(chief, "moves", True))
        move.start()
        assert read_manifest(psfleet.attach(tmp_path).save()).step > 40
        assert move.finished.is_set()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Containers:
    """The platform that psfleet finds under any name."""
    found = Containers(UP)
    monkeypatch.setattr(starting, "platform", lambda name, context, namespace: found)
    return found


def test_a_chief_that_freezes_in_its_container_is_given_up(
    place: Containers, tmp_path: Path, freeze: Callable[[LiveChief], None]
) -> None:
    """Its relay is alive, and asks it as a handle of the same machine does."""
    with serving(place, tmp_path / "inside") as chief:
        freeze(chief)
        run = psfleet.attach("small", on="compose", out=tmp_path / "out")
        expected = (
            r"small on compose: `save` is given up, .*: the chief \(worker 0\) in container chief does not answer"
        )
        with pytest.raises(NoAnswerError, match=expected):
            run.save()


def test_a_container_that_is_paused_does_not_answer(place: Containers, tmp_path: Path) -> None:
    place.now([PS, member("chief", created=5.0, state=container_channel.PAUSED), WORKER])
    run = psfleet.attach("small", on="compose", out=tmp_path / "out")
    assert run.status == "no answer from the chief"
    with pytest.raises(NoAnswerError, match="container chief is paused"):
        run.save()


def test_a_call_is_not_repeated_to_another_run_in_the_folder(tmp_path: Path) -> None:
    """Its first attempt was lost with the run that it was made to."""
    with live(tmp_path) as chief:
        found = ControlFile.read(chief.out)
        assert found is not None

        def follow() -> None:
            chief.looks = lambda: None
            ControlFile("the-next", found.launcher, found.chief).write(chief.out)

        chief.moves, chief.looks = False, follow
        with pytest.raises(LostPeerError, match="the run has ended before `save` was done, and another one has been"):
            psfleet.attach(tmp_path).save()


def test_a_call_is_not_repeated_to_another_fleet_of_the_name(place: Containers, tmp_path: Path) -> None:
    def follow() -> None:
        place.before = lambda: None
        place.now([PS, member("chief", created=6.0), WORKER])
        raise LostPeerError("the container has ended")

    with serving(place, tmp_path / "inside"):
        place.before = follow
        with pytest.raises(
            LostPeerError, match="small on compose: the run has ended before `save` was done, and another"
        ):
            psfleet.attach("small", on="compose", out=tmp_path / "out").save()
