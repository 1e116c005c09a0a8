"""A service whose front and members are pods: its token, connections to the front, and what its members say."""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from support.exported_run import PROGRAM, X
from support.kind_fleet import START_SECS, Space
from support.served import RestClient, query

TOKEN = "a-token-of-many-characters"


@dataclass
class KindService:
    """A service.

    Attributes:
        models: What is served.
        model: Its name.
        rest_port, grpc_port: Of this machine, which lead to the front.
    """

    space: Space
    models: tuple[Path, ...]
    model: str
    rest_port: int = 0
    grpc_port: int = 0

    @property
    def name(self) -> str:
        """Of the service's fleet."""
        return f"{self.model}-serve"

    def serve(self, *options: str, code: int = 0) -> str:
        """Runs `psfleet serve --on kubernetes`; what it prints."""
        token = self.space.folder / "token"
        token.write_text(TOKEN + "\n")
        words = ("serve", *map(str, self.models), "--token-file", str(token), *options)
        return " ".join(self.space.psfleet(*words, secs=START_SECS, code=code).split())

    def client(self, token: str = TOKEN) -> RestClient:
        """A client with a connection of its own."""
        return RestClient(self.rest_port, {"Authorization": f"Bearer {token}"})

    def asked(self, rows: np.ndarray = X) -> tuple[int, dict[str, Any]]:
        """Status and content of the answer to a query; 0: there is none."""
        try:
            with self.client() as client:
                return client.status_and_content("POST", f"/v2/models/{self.model}/infer", query(rows))
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}

    def version(self) -> str:
        """The version of an answer; empty: there is none."""
        return str(self.asked()[1].get("model_version", ""))

    def pod(self, component: str, index: int = 0) -> dict[str, Any]:
        """The pod of the front or a member that was not deleted."""

        def look() -> list[dict[str, Any]]:
            chosen = f"app.kubernetes.io/component={component},psfleet.index={index}"
            found = self.space.get("pods", "-l", chosen)["items"]
            return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

        return wait_until(look, START_SECS, f"a pod of {component} {index}", poll_secs=1)[0]

    def ready(self, component: str, index: int = 0) -> dict[str, Any]:
        """As `pod`, once it is ready."""

        def look() -> list[dict[str, Any]]:
            pod = self.pod(component, index)
            found = [each["status"] for each in pod["status"].get("conditions", ()) if each["type"] == "Ready"]
            return [pod] if found == ["True"] else []

        return wait_until(look, START_SECS, f"a pod of {component} {index} to be ready", poll_secs=1)[0]

    def joined(self, index: int) -> list[float]:
        """When a member has joined the front, each time."""
        entries = self.space.entries(self.pod("front")["metadata"]["name"])
        return [each["time"] for each in entries if each.get("event") == "member" and each["member"] == index]

    def await_join(self, index: int, before: int) -> None:
        """Waits until a member has joined once more."""
        wait_until(
            lambda: len(self.joined(index)), START_SECS, f"member {index} to join", done=lambda it: it > before,
            poll_secs=1,
        )  # fmt: skip

    @contextmanager
    def connected(self, rows: np.ndarray = X) -> Iterator[None]:
        """As `forwarded`, of a front that has answered a query."""
        with self.forwarded():
            wait_until(
                lambda: self.asked(rows)[0] == http.client.OK, START_SECS, "an answer of the front", poll_secs=0.5
            )
            yield

    @contextmanager
    def forwarded(self) -> Iterator[None]:
        """Context manager in which `rest_port` and `grpc_port` lead to the front."""
        # Of a Service, kubectl may choose a pod that ends; and it ends when a connection is refused.
        front = self.ready("front")["metadata"]["name"]
        (address,) = free_addresses(1)
        self.rest_port, self.grpc_port = address.port, address.control_port
        ports = (f"{self.rest_port}:8000", f"{self.grpc_port}:8001")
        with (self.space.folder / "forward.log").open("w") as output:
            process = subprocess.Popen(
                ["kubectl", "port-forward", f"pod/{front}", *ports], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env=self.space.environment,
            )  # fmt: skip
        try:
            yield
        finally:
            process.kill()
            process.wait()


def trained_service(space: Space, name: str, **sections: Any) -> KindService:
    """A service of a run whose results are on the cluster."""
    train = {"steps": 3, "batch_size": 2}
    job = Path(space.job_file(name, program="versioned_program:keras_program", train=train, **sections))
    (job.parent / "versioned_program.py").write_text(PROGRAM)
    space.psfleet("up", str(job), secs=START_SECS)
    return KindService(space, (job,), name)
