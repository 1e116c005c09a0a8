"""Nobody gets in: what a local fleet listens on is open to this machine's own processes only."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.local_fleet import processes, training

from psfleet.addresses import Address
from psfleet.processes.ports import free_addresses
from psfleet.tf.server import boot
from psfleet.tls.listeners import LISTEN, LOOPBACK_HOST, is_on_loopback_alone

DIE_SECS = 15.0
"""Until the children of a killed launcher are gone."""


def listening(pid: int) -> dict[int, str]:
    """By port, the address in hexadecimal on which a process listens."""
    found = {}
    inodes = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists() or link.is_symlink()}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and f"socket:[{fields[9]}]" in inodes:
                host, _, port = fields[1].partition(":")
                found[int(port, 16)] = host
    return found


def test_every_port_of_a_local_fleet_is_on_loopback_and_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    """A launcher that is killed while its fleet starts is in test_faults.py."""
    with training(tmp_path, fleet={"workers": 1}) as fleet:
        fleet.wait_for_step(1)
        by_process = {pid: listening(pid) for pid in processes(fleet.out)}
        services = [pid for role in ("ps", "worker") if (pid := fleet.pid(role, 0))]
        assert len(services) == 2
        for pid in services:
            assert len(by_process[pid]) >= 2, "TensorFlow's port and the control plane's"
        assert all(LOOPBACK_HOST.fullmatch(host) for ports in by_process.values() for host in ports.values())
        fleet.launcher.send_signal(signal.SIGKILL)
        fleet.wait_for(lambda: not processes(fleet.out), DIE_SECS, "the processes of a dead launcher to end")


@pytest.mark.parametrize(
    ("host", "closed"), [("127.0.0.1", True), ("localhost", True), ("127.9.8.7", True), ("0.0.0.0", False)]
)
def test_a_server_listens_where_its_address_says(host: str, closed: bool) -> None:
    """The last one shows that the others are not so by themselves."""
    [free] = free_addresses(1)
    target = boot(Address(host, free.port), None)
    assert is_on_loopback_alone(free.port) == closed
    with tf.Graph().as_default(), v1.Session(target) as session:
        assert session.run(tf.constant(41) + 1) == 42
