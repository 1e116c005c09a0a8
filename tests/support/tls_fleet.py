"""A small fleet on docker compose that a test of TLS looks at while it trains: plain, or with its own certificates."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from psfleet.errors import DeadlineError
from psfleet.job.job import load_job
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose import render as compose_file
from psfleet.polling import wait_until
from psfleet.tls import certificates
from support.images import COMMAND_SECS, WORKER_IMAGE, docker, unique

HERE = Path(__file__).parent
STEP_SECS = 90.0
"""Until a fleet has come to its first steps, or to steps after a fault; about 10 on an idle machine."""
JOB = """\
name: {name}
program: marked_program:build
tls: {tls}
fleet: {{ps: 2, workers: 2}}
update: {{mode: sync, replication: {replication}}}
optimizer: {{name: sgd, learning_rate: 0.05}}
train: {{steps: 1000, batch_size: 1}}
checkpoint: {{every_steps: 10}}
"""


@dataclass(frozen=True)
class Fleet:
    """A fleet that was started.

    Attributes:
        folder: With the job and its program; what the containers mount.
        certificates: Its certificates; not there without TLS.
    """

    name: str
    folder: Path
    certificates: Path

    @property
    def network(self) -> str:
        """The network that its containers share."""
        return f"{compose_file.project(self.name)}_{compose_file.FLEET}"

    def container(self, service: str) -> str:
        """Name of a service's one container."""
        return f"{compose_file.project(self.name)}-{service}-1"

    def entries(self, service: str) -> list[dict[str, Any]]:
        """What a service has logged; the newest last."""
        lines = docker("logs", self.container(service)).stdout.splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def count_messages(self, service: str, text: str) -> int:
        """Number of log entries of a service with a text."""
        return sum(text in entry["message"] for entry in self.entries(service))

    def step(self, generation: int = 1) -> int:
        """The newest step of a generation, or of one after it, that the chief has logged."""
        progress = [entry for entry in self.entries("chief") if entry.get("event") == "progress"]
        return max((entry["step"] for entry in progress if entry["generation"] >= generation), default=-1)

    def wait_for(self, look: Callable[[], object], what: str, timeout_secs: float = STEP_SECS) -> None:
        """Waits until `look` sees something; fails with the ends of all logs."""
        try:
            wait_until(look, timeout_secs, what, poll_secs=0.3)
        except DeadlineError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def advances(self, generation: int = 1) -> None:
        """Waits for five more steps."""
        before = self.step(generation)
        self.wait_for(lambda: self.step(generation) >= max(before, 0) + 5, f"steps after step {before}")

    def kill(self, service: str) -> None:
        """Kills every process of a service's container; the engine starts it again."""
        docker("exec", self.container(service), "sh", "-c", "kill -KILL -1", check=False)

    def run(self, script: str, *arguments: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a script of this folder prints as JSON in a container of its own."""
        mounted = ("--volume", f"{HERE / script}:/test/{script}:ro")
        arguments_of_run = ("--entrypoint", "python", *mounted, *options, WORKER_IMAGE, f"/test/{script}", *arguments)
        result: dict[str, Any] = json.loads(docker("run", "--rm", *arguments_of_run).stdout.splitlines()[-1])
        return result

    def exit_codes(self) -> dict[str, int]:
        """Of each service, once it has ended."""
        names = ("chief", "worker", "ps-0", "ps-1")
        return {name: int(docker("wait", self.container(name)).stdout) for name in names}

    def logs(self) -> str:
        """The end of each container's log."""
        names = ("chief", "worker", "ps-0", "ps-1")
        return "\n".join(f"--- {name}\n{docker('logs', self.container(name)).stdout[-3000:]}" for name in names)


@contextmanager
def fleet(folder: Path, tls: bool, replication: str = "between_graph") -> Iterator[Fleet]:
    """Starts a fleet; with the block it ends, and all that it made is removed."""
    name = unique("tls")[-24:].strip("-")
    program = folder / "program"
    program.mkdir(parents=True)
    shutil.copy(HERE / "programs" / "marked_program.py", program)
    job_file = program / "job.yaml"
    job_file.write_text(JOB.format(name=name, tls=str(tls).lower(), replication=replication))
    made = certificates_folder(name)
    if tls:
        certificates.make(made)
    content = compose_file.render(load_job(job_file), job_file)
    del content["services"]["tensorboard"]
    file = folder / "compose.yaml"
    file.write_text(yaml.safe_dump(content))
    try:
        _compose(file, "up", "--detach")
        yield Fleet(name, program, made)
    finally:
        _compose(file, "down", "--volumes", "--timeout", "0")
        shutil.rmtree(made, ignore_errors=True)


def _compose(file: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["docker", "compose", "--file", str(file), *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * COMMAND_SECS,
    )  # fmt: skip
    assert done.returncode == 0, f"docker compose {arguments[0]}: {done.stderr[-4000:]}"
