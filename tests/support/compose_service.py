"""A service whose front and members are containers: two models, a token, and what the engine has of it."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from psfleet.cli.serve import NAME
from psfleet.job.service_access import BETWEEN_GRAPH, Mode
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.processes.ports import free_addresses
from support.asking import TIMEOUT_SECS, runs
from support.compose_fleet import Fleet, psfleet
from support.exported_run import BIAS, KERNEL, X, with_checkpoint
from support.images import docker
from support.served import RestClient, query

TOKEN = "a-token-of-many-characters"
FRONT = "front"


@dataclass
class ComposeService(Fleet):
    """The fleet of a service; `folder` has the runs `one` and `two`, of `support.asking`."""

    tls: bool = False
    model: str = ""
    rest_port: int = 0
    grpc_port: int = 0
    options: list[str] = field(default_factory=list)

    def serve(self, *options: str, code: int = 0) -> str:
        """Runs `psfleet serve --on compose`; what it prints."""
        found = [str(self.folder / name) for name in ("one", "two")]
        return self.run("serve", *found, "--on", "compose", *self.options, *options, code=code)

    def client(self, token: str = TOKEN) -> RestClient:
        """A client with a connection of its own."""
        return RestClient(self.rest_port, {"Authorization": f"Bearer {token}"})

    def members(self, rows: np.ndarray = X) -> str:
        """Of how many members the answer for some rows is made; empty: there is no answer."""
        return str(self._answer(rows).get("parameters", {}).get("members", ""))

    def version(self) -> str:
        """The version of an answer; empty: there is none."""
        return str(self._answer(X).get("model_version", ""))

    def _answer(self, rows: np.ndarray) -> dict[str, Any]:
        try:
            with self.client() as client:
                status, answer = client.status_and_content("POST", f"/v2/models/{self.model}/infer", query(rows))
        except (OSError, http.client.HTTPException, ValueError):
            # A proxy of the machine may answer, not as JSON, while the front does not listen.
            return {}
        return answer if status == http.client.OK else {}

    def freeze_inside(self, service: str) -> None:
        """Stops the process of a container, which does not notice it."""
        docker("exec", self.container(service), "sh", "-c", "kill -STOP $(cat /proc/1/task/1/children)")


@contextmanager
def compose_service(folder: Path, tls: bool = False, mode: Mode = BETWEEN_GRAPH) -> Iterator[ComposeService]:
    """Runs with checkpoints, and the options of a service; nothing that the engine has of it is left behind.

    Args:
        tls: Of the job of the runs.
        mode: Of the members.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for name, factor in zip(runs(folder), (1, 3), strict=True):
        with_checkpoint(folder / name, 2, factor * KERNEL, factor * BIAS, tls=tls)
        (folder / name).chmod(0o755)
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    (address,) = free_addresses(1)
    model = f"test-{uuid.uuid4().hex[:8]}"
    assert NAME.fullmatch(model)
    options = ["--members", mode, "--name", model, "--timeout-secs", str(TIMEOUT_SECS), "--token-file", str(token)]
    options += ["--rest-port", str(address.port), "--grpc-port", str(address.control_port)]
    service = ComposeService(
        f"{model}-serve", folder, tls=tls, model=model, rest_port=address.port, grpc_port=address.control_port,
        options=options,
    )  # fmt: skip
    service.screen.touch()
    try:
        yield service
    finally:
        if service.left():
            subprocess.run(psfleet("down", service.name, "--results"), stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(certificates_folder(service.name), ignore_errors=True)
