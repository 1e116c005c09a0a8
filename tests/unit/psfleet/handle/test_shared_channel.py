"""One handle on a run in containers, used by several threads: `Run.train` makes its calls on a thread of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.container_run import UP, Containers
from support.scripted_platform import ended

from psfleet.handle.container_channel import ContainerChannel
from psfleet.launch import watcher
from psfleet.launch.platform import Member

WAIT_SECS = 20.0


class Slow(Containers):
    """Answers other threads than the main one only once the gate is open."""

    def __init__(self, *looks: Any) -> None:
        super().__init__(*looks)
        self.is_asked, self.gate = threading.Event(), threading.Event()

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `Platform`."""
        if threading.current_thread() is not threading.main_thread():
            self.is_asked.set()
            assert self.gate.wait(WAIT_SECS)
        return super().members(name, with_notes)


def test_two_threads_may_look_for_the_end_of_a_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LEAVE_SECS", 0.2)
    place = Slow(UP)
    channel = ContainerChannel(place, "compose", "small", tmp_path)
    assert channel.is_live()
    place.now([ended("ps"), ended("chief"), ended("worker", 1)])
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(channel.has_ended)
        assert place.is_asked.wait(WAIT_SECS)
        channel.has_ended()
        place.gate.set()
        assert other.result(WAIT_SECS)
    assert channel.has_ended()
