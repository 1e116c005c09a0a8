"""A fleet that stands on a real Docker engine, for a test: two ps, a worker, and a folder with a client's script."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose.render import project
from support.compose_fleet import COMMAND_SECS, START_SECS, ids, psfleet
from support.images import docker

SECS = 60.0
"""Until a container has ended, or is removed."""
SCRIPT = """\
import sys
import tensorflow as tf
import psfleet
import psfleet.errors
from psfleet.polling import wait_until

fleet = psfleet.connect()
with tf.Graph().as_default() as graph:
    with tf.device(fleet.device("ps", 0)):
        x = tf.compat.v1.get_variable("x", initializer=tf.ones([3]))
    with tf.device(fleet.device("worker", 0)):
        y = 2 * x
    with tf.device(fleet.device("ps", 1)):
        z = y + 1
with fleet.session(graph) as session:
    session.run(x.initializer)
    print(f"sum is {session.run(z).sum():g}", flush=True)
    if sys.argv[1] == "wait":
        def is_lost():
            session.run(z)

        try:
            wait_until(is_lost, 600, "a process of the fleet to go away")
        except psfleet.errors.LostPeerError:
            print("lost", flush=True)
            raise
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
"""A value goes from ps 0 to a worker, from there to ps 1, and back to the client."""


@dataclass(frozen=True)
class Lab:
    """A fleet that stands, and a folder with `client.py`."""

    name: str
    folder: Path
    tls: bool

    @property
    def client(self) -> Path:
        """`SCRIPT`."""
        return self.folder / "client.py"

    @property
    def file(self) -> Path:
        """The fleet file."""
        return self.folder / "fleet.yaml"

    def up(self) -> str:
        """What `psfleet fleet up` prints."""
        return commanded("fleet", "up", str(self.file), "--on", "compose").stdout

    def run(self, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a client to its end."""
        return subprocess.run(
            self.command(script, *arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=COMMAND_SECS,
        )  # fmt: skip

    def command(self, script: Path, *arguments: str) -> list[str]:
        """Runs a client."""
        return psfleet("run", str(script), *arguments, "--fleet", self.name, "--on", "compose")

    def started(self, script: Path, *arguments: str) -> subprocess.Popen[str]:
        """Starts a client."""
        return subprocess.Popen(
            self.command(script, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def waiting(self) -> subprocess.Popen[str]:
        """A client that has a session and keeps it."""
        client = self.started(self.client, "wait")
        assert client.stdout is not None
        assert client.stdout.readline() == "sum is 9\n", client.communicate(timeout=SECS)
        return client

    def kill(self, service: str) -> None:
        """Kills the process of a service, which the engine starts again."""
        container = f"{project(self.name)}-{service}-1"
        docker("exec", container, "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)", check=False)

    def clients(self) -> list[str]:
        """Ids of the containers of clients."""
        label = f"label=com.docker.compose.project={project(self.name)}"
        return docker(
            "ps", "--all", "--quiet", "--filter", label, "--filter", "label=psfleet.role=client"
        ).stdout.split()

    def status(self) -> dict[str, dict[str, object]]:
        """Rows of `psfleet status` by role and index."""
        rows = json.loads(commanded("status", self.name, "--on", "compose", "--json").stdout)
        return {f"{row['role']}-{row['index']}": row for row in rows}


def commanded(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command `psfleet`; fails if it does not end with `code`."""
    done = subprocess.run(
        psfleet(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_SECS
    )
    assert done.returncode == code, f"psfleet {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}"
    return done


@contextmanager
def standing_lab(folder: Path, tls: bool) -> Iterator[Lab]:
    """Two ps and a worker; nothing of them is left behind the block."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    folder.chmod(0o755)
    found = Lab(name, folder, tls)
    found.client.write_text(SCRIPT)
    found.file.write_text(f"name: {name}\nfleet: {{ps: 2, workers: 1}}\ntls: {str(tls).lower()}\n")
    try:
        assert found.up() == f"{name}: up, 2 ps and 1 worker\n"
        yield found
        assert commanded("fleet", "down", name, "--on", "compose").stdout == f"{name}: down\n"
    finally:
        left = ids("ps", "--all", project=project(name)), ids("network", "ls", project=project(name))
        if any(left):
            docker("rm", "--force", "--volumes", *left[0], check=False)
            docker("network", "rm", *left[1], check=False)
        shutil.rmtree(certificates_folder(name), ignore_errors=True)
    assert not any(left), "of a fleet that is down"
