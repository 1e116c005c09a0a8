"""A client's container on a Docker engine: none is left by a signal, whenever it comes. No engine is asked."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet.errors import StoppedError
from psfleet.platforms.compose import client


class Container:
    """A container that was created; notes what is done to it, and gets a signal to this process at one call."""

    id = "c0ffee"

    def __init__(self, signalled_at: str = "", number: int = signal.SIGINT) -> None:
        self.calls: list[str] = []
        self._at, self._number = signalled_at, number

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self._at:
            os.kill(os.getpid(), self._number)

    def start(self) -> None:
        self.note("start")

    def kill(self, signal: str) -> None:
        self.note(signal)

    def remove(self, force: bool, v: bool) -> None:
        assert force
        assert v
        self.note("remove")


def engine(container: Container) -> Any:
    """An engine on which the container ends with code 7 once its output was read."""

    def attach(name: str, params: object) -> Any:
        container.note("attach")
        return SimpleNamespace()

    def wait(url: str, **options: object) -> Any:
        container.note("wait")
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: {"StatusCode": 7})

    return SimpleNamespace(api=SimpleNamespace(attach_socket=attach, post=wait, base_url="", api_version=""))


def run(container: Container, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(client, "_copy", lambda socket: container.note("copy"))

    def create() -> Any:
        container.note("create")
        return container

    return client.run(engine(container), create)


def test_a_container_that_runs_to_its_end_says_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    container = Container()
    before = [signal.getsignal(number) for number in client.SIGNALS]
    assert run(container, monkeypatch) == 7
    assert container.calls == ["create", "attach", "wait", "start", "copy", "remove"]
    assert [signal.getsignal(number) for number in client.SIGNALS] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", ["create", "attach", "wait"])
def test_a_signal_before_its_start_leaves_no_container(
    monkeypatch: pytest.MonkeyPatch, at: str, number: signal.Signals
) -> None:
    container = Container(at, number)
    with pytest.raises(StoppedError) as stopped:
        run(container, monkeypatch)
    assert stopped.value.exit_code == 128 + number
    assert "start" not in container.calls
    assert container.calls[-1] == "remove"


@pytest.mark.parametrize("at", ["start", "copy"])
def test_a_signal_after_its_start_is_passed_on_once(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    container = Container(at, signal.SIGTERM)
    assert run(container, monkeypatch) == 7
    assert container.calls.count("SIGTERM") == 1
    assert container.calls[container.calls.index(at) + 1] == "SIGTERM"
