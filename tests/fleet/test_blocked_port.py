"""A firewall closes TensorFlow's port of a ps but not its control port: the worker says so and can be retried."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from support.service_process import START_SECS, running
from support.tiny_job import PRELUDE

from psfleet.addresses import Address
from psfleet.errors import LOST_PEERS
from psfleet.job.job import parse_job
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses

RUN = "blocked"
STALL_SECS = 6.0
"""Enough for many attempts to open a session."""
DROP_SECS = 3.0
"""Enough for one attempt, and for a connection that is not answered."""


def settings_of(folder: Path, steps: int, stall_secs: float, **update: str) -> dict[str, Any]:
    """Of a ps and a chief; writes their program.

    Args:
        update: Section of the job.
    """
    (folder / "program.py").write_text(PRELUDE)
    job = parse_job(
        {
            "name": RUN,
            "program": "program:build",
            "fleet": {"ps": 1, "workers": 1},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "update": update,
            "train": {"steps": steps, "batch_size": 4},
            "deadlines": {"step_secs": 0.3, "stall_secs": stall_secs, "first_batch_secs": stall_secs},
        }
    ).model_dump_json()
    return {"JOB": job, "RUN": RUN, "PROGRAM_FOLDER": str(folder), "INDEX": "0"}


def test_a_blocked_data_port_ends_the_chief_with_75_and_its_address_in_the_message(tmp_path: Path) -> None:
    env = settings_of(tmp_path, 20, STALL_SECS)
    with running("ps", tmp_path, **env) as ps, control_port_alone(ps.serving().address) as seen:
        with running("worker", tmp_path, PS=seen.data, **env) as chief:
            assert chief.exit_code(START_SECS) == LOST_PEERS, chief.entries()
        [failed] = chief.failures()
        reason = f"TensorFlow's port of ps 0 at {seen.data} cannot be reached (Connection refused)"
        assert reason in failed["message"]
        assert [entry for entry in chief.entries() if entry.get("event") == "lost_peer"], "it tries before it gives up"


def test_a_data_port_whose_packets_are_dropped_from_some_step_on_ends_the_run_with_75(tmp_path: Path) -> None:
    """Nothing is refused or closed: open connections carry nothing any more, and new ones are not answered.

    With in-graph replication TensorFlow's servers exchange gradients for parameters.
    """
    env = settings_of(tmp_path, 1_000_000, DROP_SECS, replication="in_graph")
    with (
        running("ps", tmp_path, **env) as ps,
        control_port_alone(ps.serving().address) as seen,
        DataPort(ps.address, seen) as data_port,
    ):
        with running("worker", tmp_path, PS=seen.data, **env) as chief, ps.client(RUN) as client:
            wait_until(lambda: client.describe().step >= 5, START_SECS, "5 steps")
            data_port.drop_packets()
            assert chief.exit_code(START_SECS) == LOST_PEERS, chief.entries()
        assert ps.exit_code(START_SECS) == LOST_PEERS, ps.entries()
    [failed] = chief.failures()
    reason = f"TensorFlow's port of ps 0 at {seen.data} cannot be reached (no answer in 2 s), while its control port"
    assert reason in failed["message"]


@contextmanager
def control_port_alone(ps: Address) -> Iterator[Address]:
    """An address of which only the control port leads to a ps."""
    [seen] = free_addresses(1)
    with socket.create_server((seen.host, seen.port + 1)) as listener:
        threading.Thread(target=_forward, args=(listener, ps), daemon=True).start()
        yield seen
        listener.shutdown(socket.SHUT_RDWR)


class DataPort:
    """The data port of an address, which leads to a ps until its packets are dropped."""

    def __init__(self, ps: Address, seen: Address) -> None:
        self._ps = ps
        self._host, self._port = seen.host, seen.port
        self._listener = socket.create_server((seen.host, seen.port), backlog=0)
        self._drops = threading.Event()
        self._open = ExitStack()

    def __enter__(self) -> DataPort:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._drops.set()
        self._open.close()

    def drop_packets(self) -> None:
        """Forwards nothing from now on, and fills the queue of connections: Linux drops the packets of further ones."""
        self._drops.set()
        for _ in range(3):
            waiting = self._open.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((self._host, self._port))

    def _accept(self) -> None:
        self._open.enter_context(self._listener)
        with suppress(OSError):
            while not self._drops.is_set():
                inner, _ = self._listener.accept()
                outer = socket.create_connection((self._ps.host, self._ps.port))
                for source, target in ((inner, outer), (outer, inner)):
                    self._open.enter_context(source)
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while (data := source.recv(1 << 16)) and not self._drops.is_set():
                target.sendall(data)


def _forward(listener: socket.socket, ps: Address) -> None:
    with suppress(OSError):
        while True:
            inner, _ = listener.accept()
            outer = socket.create_connection((ps.host, ps.port + 1))
            for source, target in ((inner, outer), (outer, inner)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with source, suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
