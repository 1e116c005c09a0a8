"""A live run in containers without any: a platform whose chief is one of this process, reached by relays on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from psfleet.control.credentials import channel
from psfleet.control.relay_client import Command
from psfleet.launch.platform import Member
from psfleet.platforms.local.control_file import ControlFile
from support.live_chief import LiveChief, live
from support.piped_relay import relay
from support.scripted_platform import ScriptedPlatform, member

CHIEF, PS, WORKER = member("chief", created=5.0), member("ps", created=5.0), member("worker", 1, created=5.0)
UP = [PS, CHIEF, WORKER]


class Containers(ScriptedPlatform):
    """A platform on which a relay reaches a chief of this process.

    Attributes:
        asked_to_stop: Names of chiefs.
        commands: What was run in which member.
        before: Called before a relay starts.
    """

    def __init__(self, *looks: Any, **options: Any) -> None:
        super().__init__(*looks, **options)
        self.asked_to_stop: list[str] = []
        self.commands: list[tuple[str, list[str]]] = []
        self.before: Callable[[], object] = lambda: None
        self.chief = ""

    def now(self, *looks: Any) -> None:
        """What is seen from now on."""
        self._looks = list(looks)

    def ask_to_stop(self, chief: Member) -> None:
        """See `Platform`."""
        self.asked_to_stop.append(chief.name)

    def running(self, chief: Member, command: Sequence[str]) -> AbstractContextManager[Command]:
        """See `Platform`."""
        self.commands.append((chief.name, list(command)))
        return self._relay()

    @contextmanager
    def _relay(self) -> Iterator[Command]:
        self.before()
        with channel(self.chief, "worker", None) as to_chief, relay(to_chief) as command:
            yield command


@contextmanager
def serving(place: Containers, out: Path, held_at: int | None = None, run: str = "small") -> Iterator[LiveChief]:
    """A chief in the fleet's chief container, where its folder is `out`; `run` is the id of its run."""
    with live(out, held_at, run=run) as chief:
        found = ControlFile.read(chief.out)
        assert found is not None
        place.chief = found.chief
        yield chief
