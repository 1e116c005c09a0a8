"""A platform whose members change as a test says: the one fake behind the tests of the launch core."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from psfleet.errors import LostPeerError, cause_of_end
from psfleet.job.activity import Activity
from psfleet.job.job import Job, parse_job
from psfleet.launch.platform import Member, Request

Look = Sequence[Member] | LostPeerError
"""The members at one look, or the error that it ends with."""


def job(**sections: Any) -> Job:
    """A job named `small`."""
    content: dict[str, Any] = {
        "name": "small",
        "program": "program:build",
        "fleet": {"ps": 1, "workers": 2, "spares": 1},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 20, "batch_size": 2},
    }
    return parse_job({**content, **sections})


def member(role: str, index: int | None = 0, **changes: Any) -> Member:
    """A member that runs."""
    name = "chief" if role == "chief" else f"{role}-{index}"
    return replace(Member("small", role, index, name, "running", started=1.0), **changes)


def ended(role: str, index: int | None = 0, code: int = 0, is_over: bool = True, **changes: Any) -> Member:
    """A member whose process has ended."""
    values = {"state": f"exited ({code})", "exit_code": code, "cause": cause_of_end(code), "is_over": is_over}
    return member(role, index, **{**values, **changes})


def killed(role: str, index: int = 0, restarts: int = 0) -> Member:
    """A member that was killed from outside, so that its restart is left to psfleet."""
    return ended(role, index, 137, awaits_restart=True, restarts=restarts)


def log(*entries: Mapping[str, Any]) -> list[str]:
    """Entries as lines that a service logged."""
    return [json.dumps({"time": 1.0, "level": "info", **entry}) for entry in entries]


class ScriptedPlatform:
    """Shows one look after the other; the last one stays.

    Args of the constructor:
        looks: The members at each look.
        logs: Lines by the name of a member, or by its name and the start of its process; a log named in
            `frozen` has no end.
        results: A folder whose files are the results.

    Attributes:
        restarted, stopped, ended_for_good: Names of members.
        former: What `scaled_away` returns.
        job_error: What `job` raises.
        driven: What `activity` returns.
        applied, scaled, scaled_loaders, removed: What was asked for.
        keeps_results: Whether the results of a fleet that is down are there.
    """

    noun = "container"
    where = "is in the script"
    location = "script"
    look_secs = 0.0
    restart_secs = 0.0
    settle_secs = 0.0
    restarts_stopped = False

    def __init__(
        self,
        *looks: Look,
        logs: Mapping[Any, Sequence[str]] | None = None,
        results: Path | None = None,
        trained: Job | None = None,
    ) -> None:
        self._looks = list(looks)
        self._logs = logs or {}
        self._results = results
        self._job = trained or job()
        self.job_error: Exception | None = None
        self.driven: Activity | None = None
        self.former: list[Member] = []
        self.keeps_results = True
        self.frozen: set[str] = set()
        self.release: Callable[[], object] = lambda: None
        self.restarted: list[str] = []
        self.stopped: list[str] = []
        self.ended_for_good: set[str] = set()
        self.applied: list[Request] = []
        self.scaled: list[int] = []
        self.scaled_loaders: list[int] = []
        self.removed: list[bool] = []

    def render(self, request: Request, out: Path | None, command: str) -> str:
        """See `Platform`."""
        return ""

    def check(self, request: Request) -> None:
        """See `Platform`."""

    def apply(self, request: Request) -> None:
        """See `Platform`."""
        self.applied.append(request)

    def activity(self, name: str) -> Activity | None:
        """See `Platform`."""
        return self.driven

    def job(self, name: str) -> Job:
        """See `Platform`."""
        if self.job_error is not None:
            raise self.job_error
        return self._job

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `Platform`."""
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        if isinstance(look, LostPeerError):
            raise look
        return list(look)

    def restart(self, member: Member) -> None:
        """See `Platform`."""
        self.restarted.append(member.name)

    def end_restarts(self, members: Sequence[Member]) -> None:
        """See `Platform`."""
        self.ended_for_good.update(member.name for member in members if member.is_over)

    def stop(self, chief: Member, timeout_secs: float) -> None:
        """See `Platform`. The chief is stopped at every look from now on."""
        self.stopped.append(chief.name)
        looks = [look for look in self._looks if not isinstance(look, LostPeerError)]
        self._looks = [[ended("chief", 0, 143) if one.role == "chief" else one for one in look] for look in looks]

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `Platform`."""
        lines = self._logs.get((member.name, member.started), self._logs.get(member.name, ()))
        yield from lines if tail is None else lines[max(0, len(lines) - tail) :]
        if follow and member.name in self.frozen:
            self.release()

    def has_results(self, name: str) -> bool:
        """See `Platform`."""
        return self.keeps_results

    @contextmanager
    def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
        """See `Platform`."""

        def archive(path: Path) -> Iterator[bytes]:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(path, arcname=f"./{path.name}")
            content = packed.getvalue()
            yield from (content[at : at + 1000] for at in range(0, len(content), 1000))

        assert self._results is not None
        yield (archive(path) for path in sorted(self._results.iterdir()))

    def scaled_away(self, name: str) -> list[Member]:
        """See `Platform`."""
        return self.former

    def scale(self, job: Job, workers: int) -> None:
        """See `Platform`."""
        self.scaled.append(workers)

    def scale_loaders(self, job: Job, loaders: int) -> None:
        """See `Platform`."""
        self.scaled_loaders.append(loaders)

    def remove(self, name: str, results: bool) -> bool:
        """See `Platform`."""
        self.removed.append(results)
        return self._looks != [[]]
