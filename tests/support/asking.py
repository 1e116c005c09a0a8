"""Clients that ask a service of two models one query after the other, whatever happens to its members."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

import numpy as np

from psfleet.polling import wait_until
from support.exported_run import BIAS, KERNEL, X, trained, with_checkpoint
from support.served import READY_SECS, RestClient, query

FIRST = X @ KERNEL + BIAS
"""Of member 0; the prediction of member 1 is three times that."""
TIMEOUT_SECS = 1.0
"""Of the service."""
SLACK_SECS = 0.5
"""How much later an answer may come, on a machine that runs other tests; 0.02 on an idle one."""


def runs(folder: Path) -> list[str]:
    """The names of two run folders, one for each model."""
    for name, factor in (("one", 1), ("two", 3)):
        (folder / name).mkdir()
        trained(folder / name)
        with_checkpoint(folder / name, 1, factor * KERNEL, factor * BIAS)
    return ["one", "two"]


class Service(Protocol):
    """What is asked."""

    model: str

    def client(self) -> RestClient:
        """A client with a connection of its own."""


class Asking:
    """Context manager in which clients ask one query after the other; at its end none has failed or was late."""

    def __init__(self, service: Service, clients: int = 3) -> None:
        self.members: list[str] = []
        self._service = service
        self._ends = threading.Event()
        self._problems: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        with self._service.client() as client:
            while not self._ends.is_set():
                began = time.monotonic()
                path = f"/v2/models/{self._service.model}/infer"
                status, answer = client.status_and_content("POST", path, query(X))
                secs = time.monotonic() - began
                if status != 200 or secs > TIMEOUT_SECS + SLACK_SECS:
                    self._problems.append(f"{status} after {secs:.2f} s: {answer}")
                    continue
                members = answer["parameters"]["members"]
                factor = {"2 of 2": 2.0, "1 of 2": 1.0}[members]
                np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], [3, 3]), factor * FIRST, rtol=1e-6)
                self.members.append(members)

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        assert not self._problems

    def await_answer_of(self, members: str) -> None:
        """Waits until one more answer is made of so many members."""
        before = len(self.members)
        wait_until(lambda: members in self.members[before:], READY_SECS, f"an answer of {members}")
