"""One process of the contender `tcp`: bytes of a step on plain connections, both ways at once; nothing waits for them.

This is what TCP makes of a link on which a worker's parameters arrive while its gradient is sent.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.array_links import CONNECT_SECS, Link, accepted, connected
from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import time_steps
from benchmarks.workload import Workload
from psfleet.addresses import Address


def main() -> None:
    """Runs one process, which prints a JSON line of step times in milliseconds."""
    parser = argparse.ArgumentParser(prog="benchmarks.duplex")
    parser.add_argument("--accept", type=int, default=0, help="number of connections that others open")
    parser.add_argument("--own", type=Address.parse, required=True, help="host:port on which it listens")
    parser.add_argument("--connect", type=json.loads, default=[], help="JSON list of host:port")
    parser.add_argument("--floats", type=int, required=True, help="in a step, on each connection and each way")
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    args = parser.parse_args()
    parent = ParentPipe()
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accepted, args.own, args.accept) if args.accept else None
        sockets = [connected(Address.parse(text)) for text in args.connect]
        sockets += accepting.result() if accepting is not None else []
    links = [Link(each) for each in sockets]
    parent.report(**dataclasses.asdict(time_steps(Steps(links, args.floats).step, args.workload)))
    parent.wait_for_line("the end", CONNECT_SECS)


class Steps:
    """Steps on some connections."""

    def __init__(self, links: list[Link], floats: int) -> None:
        self._links = links
        self._sent = [np.ones(floats, np.float32)]
        self._received = [np.empty(floats, np.float32) for _ in links]
        self._pool = ThreadPoolExecutor(2 * len(links))

    def step(self, number: int) -> int:
        """Sends and receives on all of them at once; returns the number of steps."""
        sent = [self._pool.submit(link.send, self._sent) for link in self._links]
        received = [
            self._pool.submit(link.receive, array) for link, array in zip(self._links, self._received, strict=True)
        ]
        for each in (*sent, *received):
            each.result()
        return number + 1


if __name__ == "__main__":
    main()
