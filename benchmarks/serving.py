"""Measures a service of one model with one member: latency and throughput, against TensorFlow's own in one process.

A query is one image for LeNet-5 of `examples/lenet`, with the weights after one step. Clients of the service are
concurrent in this process, of TensorFlow's own they are threads of the process with the model.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

import psfleet
from benchmarks import serving_load
from benchmarks.children import Child, ChildError, Children
from benchmarks.contenders import START_SECS, Measures, python
from benchmarks.interleaving import Contender, Plan, new_parser, run
from benchmarks.results import Comparison, Group
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses

JOB = Path(__file__).parent.parent / "examples" / "lenet" / "job.yaml"
ALONE = ("fleet.ps=1", "fleet.workers=1", "fleet.spares=0", "train.steps=1")
MODEL = "lenet"
CLIENTS = (1, 16)
PEERS = ("model.predict(x)", "model(x)", "tf.function(model)(x)")
COMPARED = PEERS[:2]
"""Those with which the service is compared: what a program calls that has no server."""
REST, GRPC = "psfleet, REST", "psfleet, gRPC"
MEASURES = {"p50_ms": False, "p99_ms": False, "queries_per_sec": True}
"""What is compared, and whether more of it is better."""
TEXT = (
    "LeNet-5, one image in each query: `psfleet serve` with one member, tensors in binary form over REST and gRPC, "
    "against `model.predict`, `model(x)` and a `tf.function` of the model, which threads of one process call."
)


def main(arguments: Sequence[str]) -> int:
    """Parses the command line, measures, writes the results."""
    parser = new_parser("serving", __doc__)
    parser.add_argument("--secs", type=float, default=2.0, help="of each run (default 2)")
    args = parser.parse_args(arguments)
    if args.secs <= 0:
        parser.error(f"--secs is {args.secs:g}, expected more than 0")
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder, Children() as children:
        run_folder = Path(folder) / "run"
        report = psfleet.train(JOB, out=run_folder, overrides=ALONE)
        if report.status != "done":
            sys.exit(f"benchmark failed: {report.error}")
        with served(children, run_folder) as ports:
            peer = children.start("peer", python("benchmarks.serving_peer", str(run_folder)))
            check(children.receive(peer, "answers of TensorFlow", START_SECS), ports)
            plans = [plan(children, peer, ports, clients, args.secs) for clients in CLIENTS]
            return run("serving", "Serving", TEXT, plans, args.rounds, args.results)


@contextmanager
def served(children: Children, run_folder: Path) -> Iterator[dict[str, int]]:
    """A service of a run; its ports by the names of contenders."""
    (address,) = free_addresses(1)
    ports = {REST: address.port, GRPC: address.control_port}
    options = ["--rest-port", str(ports[REST]), "--grpc-port", str(ports[GRPC]), "--out", str(run_folder / "service")]
    children.start("service", python("psfleet", "serve", str(run_folder), *options))

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[REST]}/v2/health/ready", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            return False

    wait_until(is_ready, START_SECS, "the service")
    yield ports


def plan(children: Children, peer: Child, ports: dict[str, int], clients: int, secs: float) -> Plan:
    """The contenders with a number of clients."""

    def of_peer(way: str) -> Measures:
        children.send(peer, json.dumps({"way": way, "clients": clients, "secs": secs}))
        found: object = children.receive(peer, "latencies", START_SECS + secs)
        assert isinstance(found, list), "it answers each line with a list"
        return measures(found, secs)

    def of_service(name: str) -> Measures:
        return measures(asyncio.run(load(name, ports[name], clients, secs)), secs)

    title = "1 client" if clients == 1 else f"{clients} clients"
    comparisons = [
        Comparison(own, other, measure=measure, is_minimum=is_minimum)
        for own in (REST, GRPC)
        for other in COMPARED
        for measure, is_minimum in MEASURES.items()
    ]
    contenders = [Contender(name, partial(of_service, name)) for name in (REST, GRPC)]
    contenders += [Contender(name, partial(of_peer, name)) for name in PEERS]
    return Plan(Group(title, tuple(comparisons)), contenders)


def measures(latencies: Sequence[float], secs: float) -> Measures:
    """What is compared, of the latencies of all queries of a run.

    Raises:
        ChildError: There are too few.
    """
    if len(latencies) < 2:
        raise ChildError(f"{len(latencies)} queries were answered in {secs:g} s, expected at least 2")
    percentiles = statistics.quantiles(latencies, n=100, method="inclusive")
    return {
        "p50_ms": 1000 * percentiles[49],
        "p99_ms": 1000 * percentiles[98],
        "queries_per_sec": len(latencies) / secs,
    }


async def load(name: str, port: int, clients: int, secs: float) -> list[float]:
    """Latencies of queries of so many clients, each with a connection of its own."""
    async with AsyncExitStack() as stack:
        asks = [await stack.enter_async_context(client(name)(MODEL, port)) for _ in range(clients)]
        await asyncio.gather(*(ask() for ask in asks))
        return await serving_load.latencies(asks, secs)


def client(name: str) -> Callable[[str, int], AbstractAsyncContextManager[serving_load.Ask]]:
    """How a contender is asked."""
    return serving_load.rest if name == REST else serving_load.over_grpc


def check(answers: dict[str, list[list[float]]], ports: dict[str, int]) -> None:
    """Asks once over each protocol, and compares the answers with those of TensorFlow."""

    async def ask(name: str) -> np.ndarray:
        async with client(name)(MODEL, ports[name]) as asked:
            return await asked()

    for name in ports:
        found = asyncio.run(ask(name))
        for way, expected in answers.items():
            np.testing.assert_allclose(found, np.ravel(expected), rtol=1e-4, atol=1e-5, err_msg=f"{name}, {way}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
