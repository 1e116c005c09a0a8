"""Kills or stops a process of a fleet that trains, and waits until the fleet has noticed and trains again."""

from __future__ import annotations

import os
import signal

from support.local_fleet import START_SECS, Fleet


def cause(fleet: Fleet, role: str, index: int, number: signal.Signals) -> None:
    """Kills a process, or stops it until another process has noticed; returns once the fleet trains again.

    Args:
        number: SIGKILL or SIGSTOP.
    """
    pid, entries = fleet.pid(role, index), lost(fleet)
    assert pid is not None, f"there is no {role} {index}\n{fleet.tails()}"
    os.kill(pid, number)
    killed = pid
    if number == signal.SIGSTOP:
        killed = None
        try:
            fleet.wait_for(lambda: lost(fleet) > entries, START_SECS, f"the loss of {role} {index} to be noticed")
        finally:
            os.kill(pid, signal.SIGCONT)
    fleet.wait_for(lambda: fleet.pid(role, index) not in (None, killed), START_SECS, f"a running {role} {index}")
    fleet.wait_for_progress()


def lost(fleet: Fleet) -> int:
    """How often a worker has lost a peer, or ps 0 a worker: in one graph, no other worker has a session to lose."""
    slow = sum("(gone)" in entry["message"] for entry in fleet.entries("slow_step", "ps"))
    workers = range(len(list((fleet.out / "logs").glob("worker-*.log"))))
    return slow + sum(len(fleet.entries("lost_peer", index=worker)) for worker in workers)
