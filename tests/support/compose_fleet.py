"""A fleet under test on a real Docker engine: `psfleet up` as a child, its containers, and nothing left behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from psfleet.errors import DeadlineError
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose.render import project
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from psfleet.service.logs import parse_line
from support.images import docker, printed
from support.local_fleet import JOB, PROGRAM

T = TypeVar("T")

START_SECS = 150.0
"""Until a fleet trains; 15 on an idle machine with 2 cores."""
END_SECS = 120.0
COMMAND_SECS = 150.0
POLL_SECS = 0.25
DETACHED = 128 + signal.SIGINT
"""The exit code of a `psfleet up` that Ctrl-C detached."""


@dataclass
class Fleet:
    """A job in a folder of its own, and what runs of it on the engine.

    Attributes:
        name: Of the job.
        folder: Has the job file, the program, the gates and, after `up`, the results in `out`.
    """

    name: str
    folder: Path
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def job(self) -> Path:
        """The job file."""
        return self.folder / "job.yaml"

    @property
    def out(self) -> Path:
        """Where results are copied to."""
        return self.folder / "out"

    @property
    def screen(self) -> Path:
        """What the newest `psfleet up` prints."""
        return self._screen(len(self.commands))

    def up(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts `psfleet up`."""
        command = [*psfleet("up"), str(self.job), "--out", str(self.out), *arguments]
        with self._screen(len(self.commands) + 1).open("wb") as screen:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=screen, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.commands.append(process)
        return process

    def leave(self) -> int:
        """Presses Ctrl-C on `psfleet up`; its exit code."""
        self.commands[-1].send_signal(signal.SIGINT)
        code = self.end(20.0)
        assert code == DETACHED, f"exit code {code}\n{self.tails()}"
        return code

    def end(self, timeout_secs: float = END_SECS) -> int:
        """Waits for `psfleet up`; its exit code."""
        code = self.wait_for(
            self.commands[-1].poll, timeout_secs, "psfleet up to end", done=lambda code: code is not None
        )
        assert code is not None, "wait_until checked it"
        return code

    def report(self) -> Report:
        """What was copied out."""
        return Report.read(self.out)

    def run(self, *arguments: str, code: int = 0) -> str:
        """What another `psfleet` command prints; fails if it does not end with `code`."""
        done = subprocess.run(
            psfleet(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECS
        )
        assert done.returncode == code, f"psfleet {' '.join(arguments)}: exit code {done.returncode}\n{printed(done)}"
        return done.stdout + done.stderr

    def hurry(self) -> None:
        """From now on steps take no longer than they must."""
        (self.folder / "gates" / "pace").unlink(missing_ok=True)

    def container(self, service: str, number: int = 1) -> str:
        """A container's name."""
        return f"{project(self.name)}-{service}-{number}"

    def containers(self) -> dict[str, dict[str, Any]]:
        """State of each container as the engine describes it, by name."""
        return inspected("ps", "--all", project(self.name))

    def network(self, name: str) -> str:
        """The engine's name of one of the fleet's networks."""
        return f"{project(self.name)}_{name}"

    def left(self) -> dict[str, list[str]]:
        """What the engine still has of the fleet."""
        kinds = {"containers": ("ps", "--all"), "networks": ("network", "ls"), "volumes": ("volume", "ls")}
        return {kind: found for kind, command in kinds.items() if (found := ids(*command, project=project(self.name)))}

    def entries(self, event: str, service: str = "chief", number: int = 1) -> list[dict[str, Any]]:
        """What a container logged of one kind, over all its processes; the chief's unless another is named."""
        done = docker("logs", self.container(service, number), check=False)
        found = [entry for line in done.stdout.splitlines() if (entry := parse_line(line)) is not None]
        return [entry for entry in found if entry.get("event") == event]

    def step(self) -> int:
        """The newest step that the chief has logged; 0 before the first."""
        return max((entry["step"] for entry in self.entries("progress")), default=0)

    def wait_for_step(self, step: int, timeout_secs: float = START_SECS) -> None:
        """Waits until the chief has logged a step at least as high."""
        self.wait_for(lambda: self.step() >= step or self._has_ended(), timeout_secs, f"step {step}")
        assert self.step() >= step, f"psfleet up ended before step {step}\n{self.tails()}"

    def wait_for(
        self,
        probe: Callable[[], T],
        timeout_secs: float,
        what: str,
        done: Callable[[T], bool] = bool,
    ) -> T:
        """What `probe` returns once that is true; fails with the logs of all containers if it never is."""
        try:
            return wait_until(probe, timeout_secs, what, done=done, poll_secs=POLL_SECS)
        except DeadlineError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from error

    def kill_inside(self, service: str, number: int = 1) -> float:
        """Kills the process of a container, so that Docker starts it again; returns when, in seconds since 1970."""
        docker(
            "exec", self.container(service, number), "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)", check=False
        )
        return time.time()

    def _screen(self, number: int) -> Path:
        return self.folder / f"screen-{number}.txt"

    def _has_ended(self) -> bool:
        return bool(self.commands) and self.commands[-1].poll() not in (None, DETACHED)

    def tails(self) -> str:
        """The ends of what the command printed and the containers logged."""
        tails = [f"--- {self.screen.name}\n{self.screen.read_text()[-1500:]}"]
        for name in self.containers():
            logs = docker("logs", "--tail", "8", name, check=False)
            tails.append(f"--- {name}\n{logs.stdout[-1500:]}{logs.stderr[-600:]}")
        return "\n".join(tails)


@contextmanager
def fleet(folder: Path, step_secs: float = 0.05, programs: tuple[Path, ...] = (), **sections: Any) -> Iterator[Fleet]:
    """A job on the paced program; everything that the engine has of it is removed with the block.

    Args:
        folder: Of its own.
        step_secs: The pace until `hurry()`.
        programs: Lie beside the paced one.
        sections: Of the job file; where they are mappings, what they lack is as in `JOB`.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    gates = folder / "gates"
    gates.mkdir(parents=True)
    (gates / "pace").touch()
    for program in (PROGRAM, *programs):
        shutil.copy(program, folder)
    job = {**JOB, "name": name, "options": {"gates": "/program/gates", "step_secs": step_secs}}
    for key, section in sections.items():
        job[key] = {**job.get(key, {}), **section} if isinstance(section, dict) else section
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    for path in (folder, gates):
        path.chmod(0o755)
    started = Fleet(name, folder)
    try:
        yield started
    finally:
        for command in started.commands:
            command.kill()
            command.wait()
        if started.left():
            subprocess.run(psfleet("down", name, "--results"), stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(certificates_folder(name), ignore_errors=True)


def psfleet(*arguments: str) -> list[str]:
    """The command."""
    return [sys.executable, "-m", "psfleet", *arguments]


def ids(*command: str, project: str) -> list[str]:
    """What a listing command of docker names in a compose project."""
    label = f"label=com.docker.compose.project={project}"
    return docker(*command, "--quiet", "--filter", label).stdout.split()


def inspected(*command: str) -> dict[str, dict[str, Any]]:
    """State of each container of a project as the engine describes it, by name; the project is the last word."""
    *listing, name = command
    found = ids(*listing, project=name)
    content = json.loads(docker("inspect", *found).stdout) if found else []
    return {item["Name"].removeprefix("/"): item for item in content}
