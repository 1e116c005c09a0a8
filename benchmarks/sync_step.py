"""Measures a step of psfleet and of its peers, in turn: synchronous ones, and asynchronous ones per global step.

2 workers + 1 ps, or what a peer has instead, as processes of this machine. The exit code is 0 whatever the figures are,
and 1 when a contender failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks import contenders
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.peers import starting
from benchmarks.psfleet_run import COLOCATED, psfleet
from benchmarks.results import Comparison, Group
from benchmarks.workload import HIDDEN, OPTIMIZERS, Workload

STEPS = {128: 300, 1024: 100}
"""Timed synchronous steps of a run, by hidden units; twice as many asynchronous ones."""
ON_REQUEST = ("runtime", "psfleet async colocated")
"""Contenders that are measured only if `--contenders` names them."""
ASYNC = "update.mode=async"
TCP = "fleet.unix_sockets=false"
PER_GRADIENT = "cpu_ms_per_gradient"
SYNC_GOALS = (
    Comparison("psfleet", "ddp", 0.85),
    Comparison("psfleet TCP", "ddp", 0.85),
    Comparison("psfleet colocated", "ddp", 0.85),
    Comparison("psfleet bfloat16", "ddp bfloat16", 0.85),
    Comparison("psfleet", "ray", 0.5),
    Comparison("psfleet", "stock", 0.5),
    Comparison("psfleet colocated", "stock", 0.5),
    Comparison("psfleet", "compute"),
    Comparison("psfleet", "bare"),
    Comparison("psfleet", "psfleet TCP"),
    Comparison("psfleet colocated", "bare colocated"),
    Comparison("psfleet", "runtime"),
    Comparison("runtime", "ddp"),
    Comparison("runtime", "ray"),
    Comparison("runtime", "stock"),
    Comparison("bare", "ddp"),
    Comparison("bare", "ray"),
    Comparison("bare", "stock"),
)
GOALS = {
    128: (
        *SYNC_GOALS,
        Comparison("psfleet async", "ps_strategy", 0.4),
        Comparison("psfleet async colocated", "ps_strategy", 0.4),
        Comparison("psfleet", "compute", None, PER_GRADIENT),
    ),
    1024: (
        *SYNC_GOALS,
        Comparison("psfleet async", "ps_strategy", 0.67),
        Comparison("psfleet async colocated", "ps_strategy", 0.67),
        Comparison("psfleet", "compute", 1.8, PER_GRADIENT),
        Comparison("psfleet colocated", "compute", 1.8, PER_GRADIENT),
    ),
}
TEXT = """A ReLU MLP 784-hidden-hidden-10, batch {batch} per worker, {optimizer}, 2 workers and 1 ps on loopback.
`colocated` is psfleet with a ps in each worker (`fleet.colocate`), `TCP` psfleet without Unix sockets and shared
memory (`fleet.unix_sockets: false`). `compute` is one process without a ps. `bare` is the least that a ps must do:
TensorFlow's gradient and update, and between them one copy of each into shared memory, without an RPC library, counts,
checks or recovery. The other contenders' processes use TCP, those of `ray` shared memory, too. `runtime` is the same as
`bare` in TensorFlow's runtime: a ps that consists of queues and one variable. `stock` is the recipe of TensorFlow 1
(`replica_device_setter`, `SyncReplicasOptimizer`, `MonitoredTrainingSession`), `ddp` PyTorch's DistributedDataParallel
with gloo, `ray` two actors that train with TensorFlow and whose weights are averaged after each step, `ps_strategy`
TensorFlow 2's ParameterServerStrategy with a coordinator. Steps of `psfleet async` and `ps_strategy` are global steps,
of one gradient each; all others average two. Milliseconds are medians of a run's steps, of these contenders means. CPU
time is that of all processes of a contender."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("sync_step", __doc__)
    parser.add_argument("--steps", type=at_least(2), help="timed steps of a run (default 300 and 100)")
    parser.add_argument("--hidden", type=int, nargs="+", choices=HIDDEN, default=HIDDEN, help="default: both")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help="the same for all")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help=f"default: all but {' and '.join(ON_REQUEST)}")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="passed on to psfleet train"
    )
    args = parser.parse_args()
    plans = [plan(hidden, args) for hidden in args.hidden]
    known = [each.name for each in plans[0].contenders]
    if unknown := set(args.contenders or ()) - set(known):
        parser.error(f"--contenders has {', '.join(sorted(unknown))}, expected some of: {', '.join(known)}")
    chosen = args.contenders or [name for name in known if name not in ON_REQUEST]
    plans = [Plan(each.group, [one for one in each.contenders if one.name in chosen]) for each in plans]
    text = TEXT.format(batch=Workload.batch_size, optimizer=args.optimizer)
    title = "Steps of an MLP on loopback"
    return run("sync_step", title, with_overrides(text, args.overrides), plans, args.rounds, args.results)


def with_overrides(text: str, overrides: Sequence[str]) -> str:
    """The text of a result, with what its psfleet jobs had besides."""
    return f"{text} psfleet with `{' '.join(overrides)}`." if overrides else text


def plan(hidden: int, args: argparse.Namespace) -> Plan:
    """All contenders on one MLP."""
    workload = Workload(hidden=hidden, optimizer=args.optimizer, steps=args.steps or STEPS[hidden])
    twice = dataclasses.replace(workload, steps=2 * workload.steps, warmup_steps=2 * workload.warmup_steps)
    ways = [
        Contender("compute", partial(contenders.compute, workload)),
        Contender("psfleet", partial(psfleet, workload, args.overrides)),
        Contender("psfleet TCP", partial(psfleet, workload, [*args.overrides, TCP])),
        Contender("psfleet colocated", partial(psfleet, workload, [*args.overrides, *COLOCATED])),
        Contender("bare", partial(contenders.bare, workload)),
        Contender("bare colocated", partial(contenders.bare, workload, is_colocated=True)),
        Contender("runtime", partial(contenders.runtime, workload)),
        Contender("stock", partial(contenders.stock, workload)),
        Contender("ddp", partial(starting.ddp, workload), "torch"),
        Contender("ray", partial(starting.ray, workload), "ray"),
        Contender("psfleet bfloat16", partial(psfleet, workload, [*args.overrides, "update.wire=bfloat16"])),
        Contender("ddp bfloat16", partial(starting.ddp, workload, "bfloat16"), "torch"),
        Contender("psfleet async", partial(psfleet, twice, [*args.overrides, ASYNC])),
        Contender("psfleet async colocated", partial(psfleet, twice, [*args.overrides, ASYNC, *COLOCATED])),
        Contender("ps_strategy", partial(starting.ps_strategy, twice)),
    ]
    title = f"784-{hidden}-{hidden}-10, {workload.num_parameters:,} parameters"
    return Plan(Group(title, GOALS[hidden]), ways)


if __name__ == "__main__":
    sys.exit(main())
