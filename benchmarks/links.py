"""Measures a synchronous step where the link is the limit: each role on a host of its own, at 1 Gbit/s and less.

Hosts are network namespaces of this machine, which needs root, iproute2 and HTB. Nothing is computed: gradients are
constants.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.children import Children
from benchmarks.contenders import START_SECS, Measures, measured, python, run_secs
from benchmarks.cpu_time import cpu_time
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.link_hosts import PORT, floor_ms, hosts, why_impossible
from benchmarks.namespaces import Host
from benchmarks.peers.starting import ddp_command
from benchmarks.psfleet_run import WAITING_JOB, settings
from benchmarks.psfleet_run import measured as psfleet_measured
from benchmarks.results import Comparison, Group
from benchmarks.workload import Workload

SHAPES = ((784, 2048), (2048,), (2048, 2048), (2048,), (2048, 10), (10,))
"""Those of the MLP 784-2048-2048-10."""
STEPS = {1000: 15, 200: 6}
"""Timed steps of a run, by Mbit/s."""
SIZES = (2, 4)
"""Numbers of workers, of ps, and of DDP's hosts."""
PS_PORT, DDP_PORT = 2222, 29500
BUCKETS = 16
"""On each ps: pushed, updated and pulled one after the other, so that both directions of a link are in use at once."""
FEWER_BUCKETS = {(1000, 4): 4}
"""The same by Mbit/s and number of ps where two cores are the limit: each bucket takes CPU time."""
GOALS = (
    Comparison("line rate", "psfleet", 0.9, is_minimum=True),
    Comparison("line rate", "tcp"),
    Comparison("tcp", "psfleet"),
    Comparison("tcp colocated", "psfleet colocated"),
    Comparison("tcp colocated", "ddp"),
    Comparison("psfleet bfloat16", "psfleet", 0.55),
    Comparison("psfleet colocated", "ddp", 0.9),
    Comparison("psfleet bfloat16 colocated", "ddp bfloat16", 0.9),
)
TEXT = """{parameters:,} parameters, gradient descent, gradients that are constants: a step is a matter of bytes. Each
host is a network namespace, on a switch by a link that HTB limits in both directions, with a queue of 1 MB each; TCP's
congestion control is cubic. psfleet has a host for each ps and each worker, or with `fleet.colocate` (`colocated`) one
process for both; `psfleet task` starts its processes. Its `update.bucket_bytes` is a sixteenth of a shard, and a fourth
with 4 workers at 1 Gbit/s. DDP with gloo has a host for each worker, and its default buckets. `line rate` is how long
the link of a worker is busy with the model in one direction, with the headers of TCP on Ethernet: the limit of a step
with a ps on another host in which pulls overlap pushes. `tcp` is how long plain connections take for the bytes of such
a step, both ways at once, and `tcp colocated` for those of a step with a ps in each worker, which are the bytes of a
ring."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("links", __doc__)
    parser.add_argument("--steps", type=at_least(2), help="timed steps of a run (default 15 at 1 Gbit/s, else 6)")
    parser.add_argument("--megabits", type=int, nargs="+", choices=STEPS, default=tuple(STEPS), help="default: all")
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=SIZES, help="workers (default: 2 and 4)")
    args = parser.parse_args()
    if why := why_impossible():
        sys.exit(f"benchmark failed: {why}")
    plans = [plan(megabits, size, args.steps) for megabits in args.megabits for size in args.sizes]
    text = TEXT.format(parameters=workload(1).num_parameters)
    return run("links", "Steps on limited links", text, plans, args.rounds, args.results)


def workload(steps: int) -> Workload:
    """What is trained."""
    return Workload(0, "sgd", steps, warmup_steps=3, batch_size=4, shapes=SHAPES)


def plan(megabits: int, size: int, steps: int | None) -> Plan:
    """All contenders with a number of workers, on links of one rate."""
    trained = workload(steps or STEPS[megabits])
    narrow = ("update.wire=bfloat16",)
    limit = {"step_ms": floor_ms(4 * trained.num_parameters, megabits)}
    ways = [
        Contender("line rate", lambda: limit),
        Contender("tcp", partial(tcp, trained, size, megabits)),
        Contender("tcp colocated", partial(tcp, trained, size, megabits, is_colocated=True)),
        Contender("psfleet", partial(psfleet, trained, size, megabits)),
        Contender("psfleet bfloat16", partial(psfleet, trained, size, megabits, narrow)),
        Contender("psfleet colocated", partial(psfleet, trained, size, megabits, is_colocated=True)),
        Contender("psfleet bfloat16 colocated", partial(psfleet, trained, size, megabits, narrow, is_colocated=True)),
        Contender("ddp", partial(ddp, trained, size, megabits), "torch"),
        Contender("ddp bfloat16", partial(ddp, trained, size, megabits, "bfloat16"), "torch"),
    ]
    return Plan(Group(f"{megabits} Mbit/s, {size} workers, {size} ps", GOALS), ways)


def psfleet(
    trained: Workload, size: int, megabits: int, overrides: Sequence[str] = (), *, is_colocated: bool = False
) -> Measures:
    """Trains with as many ps as workers.

    Args:
        trained: What to train.
        size: Number of workers, and of ps.
        megabits: Rate of the links.
        overrides: Further `key=value` texts for `--set`.
        is_colocated: Whether each worker's process is a ps, too.
    """
    with (
        tempfile.TemporaryDirectory(prefix="psfleet-bench-") as out,
        hosts(size if is_colocated else 2 * size, megabits) as made,
        Children() as children,
        cpu_time(children.pids) as cpu,
    ):
        by_role = {"worker": made} if is_colocated else {"ps": made[-size:], "worker": made[:size]}
        ps = made[-size:]
        fleet = (f"fleet.ps={size}", f"fleet.workers={size}", f"fleet.colocate={is_colocated}")
        bucket = f"update.bucket_bytes={bucket_bytes(4 * trained.num_parameters, size, num_buckets(size, megabits))}"
        flags = [part for setting in (*settings(trained), *fleet, bucket, *overrides) for part in ("--set", setting)]
        started = [
            children.start(f"{role}-{index}", host.command(task(role, index, ps, out, flags)))
            for role, several in by_role.items()
            for index, host in enumerate(several)
        ]
        for child in started:
            children.wait(child, "training", START_SECS + run_secs(trained))
        return psfleet_measured(Path(out), trained, cpu, gradients=size)


def num_buckets(size: int, megabits: int) -> int:
    """Buckets on each of `size` ps."""
    return FEWER_BUCKETS.get((megabits, size), BUCKETS)


def bucket_bytes(num_bytes: int, num_ps: int, buckets: int) -> int:
    """Bytes of a bucket if each ps has so many of a model; a multiple of 64, with room for aligned tensors."""
    return math.ceil(num_bytes / (num_ps * buckets * 64) + len(SHAPES)) * 64


def task(role: str, index: int, ps: Sequence[Host], out: str, flags: Sequence[str]) -> list[str]:
    """The command line of one process of psfleet."""
    at = ",".join(f"{host.ip}:{PS_PORT}" for host in ps)
    place = ("--role", role, "--index", str(index), "--ps", at)
    return python("psfleet", "task", str(WAITING_JOB), *place, "--out", out, *flags)


def tcp(trained: Workload, size: int, megabits: int, *, is_colocated: bool = False) -> Measures:
    """Sends and receives the bytes of a step, without a step.

    Each worker sends each ps a shard, and gets one from it; with a ps in each worker, so does each from each other.
    """
    with (
        hosts(size if is_colocated else 2 * size, megabits) as made,
        Children() as children,
        cpu_time(children.pids) as cpu,
    ):
        addresses = [f"{host.ip}:{PS_PORT}" for host in made]
        floats = math.ceil(trained.num_parameters / size) * (2 if is_colocated else 1)
        started = []
        for index, host in enumerate(made):
            if is_colocated:
                connect, accept = addresses[index + 1 :], index
            else:
                connect, accept = (addresses[size:], 0) if index < size else ([], size)
            arguments = ("--own", addresses[index], "--connect", json.dumps(connect), "--accept", str(accept))
            rest = ("--floats", str(floats), "--workload", trained.to_json())
            command = host.command(python("benchmarks.duplex", *arguments, *rest))
            started.append(children.start(f"tcp-{index}", command))
        return measured(children, started, cpu, trained, gradients=size)


def ddp(trained: Workload, size: int, megabits: int, wire: str = "float32") -> Measures:
    """Trains with a worker on each host."""
    with hosts(size, megabits) as made, Children() as children, cpu_time(children.pids) as cpu:
        address = f"{made[0].ip}:{DDP_PORT}"
        interface = ("env", f"GLOO_SOCKET_IFNAME={PORT}")
        workers = [
            children.start(f"ddp-{rank}", host.command([*interface, *ddp_command(trained, wire, address, rank, size)]))
            for rank, host in enumerate(made)
        ]
        for worker in workers:
            children.receive(worker, "a complete group", START_SECS)
        return measured(children, workers, cpu, trained, gradients=size)


if __name__ == "__main__":
    sys.exit(main())
