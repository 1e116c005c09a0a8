"""Measures a step of a model with many variables: those of ResNet-50, against one variable of the same size.

Nothing is computed: a worker's gradients are constants, and a wait stands for the rest. 2 workers + 1 ps as processes
of this machine.
"""

from __future__ import annotations

import sys
from functools import partial

from benchmarks import contenders, resnet50
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.peers import starting
from benchmarks.psfleet_run import COLOCATED, psfleet
from benchmarks.results import Comparison, Group
from benchmarks.workload import Workload

GOALS = (
    Comparison("psfleet", "stock", 0.3),
    Comparison("psfleet", "psfleet, one variable", 1.05),
    Comparison("psfleet", "ddp"),
    Comparison("psfleet colocated", "ddp"),
    Comparison("psfleet", "bare"),
    Comparison("psfleet colocated", "bare colocated"),
    Comparison("psfleet", "runtime"),
    Comparison("runtime", "stock"),
    Comparison("bare", "stock"),
)
TEXT = """{number} variables with the shapes of ResNet-50's, {parameters:,} parameters, gradient descent, 2 workers
and 1 ps on loopback. A step waits {wait_ms} ms instead of computing, and each gradient is a constant: this is the
data plane alone. `one variable` has the same number of parameters. `psfleet colocated`, `bare` and `runtime` are as
in the first table."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("variables", __doc__)
    parser.add_argument("--steps", type=at_least(2), default=30, help="timed steps of a run (default 30)")
    parser.add_argument("--wait-ms", type=at_least(0), default=20, help="simulated compute of a step (default 20)")
    args = parser.parse_args()
    shapes = resnet50.shapes()
    many = Workload(0, "sgd", args.steps, warmup_steps=5, batch_size=4, shapes=shapes, wait_ms=args.wait_ms)
    one = Workload(
        0, "sgd", args.steps, warmup_steps=5, batch_size=4, shapes=((many.num_parameters,),), wait_ms=args.wait_ms
    )
    ways = [
        Contender("psfleet", partial(psfleet, many)),
        Contender("psfleet, one variable", partial(psfleet, one)),
        Contender("psfleet colocated", partial(psfleet, many, COLOCATED)),
        Contender("bare", partial(contenders.bare, many)),
        Contender("bare colocated", partial(contenders.bare, many, is_colocated=True)),
        Contender("runtime", partial(contenders.runtime, many)),
        Contender("stock", partial(contenders.stock, many)),
        Contender("ddp", partial(starting.ddp, many), "torch"),
        Contender("compute", partial(contenders.compute, many)),
    ]
    title = f"{len(shapes)} variables, {many.num_parameters:,} parameters"
    text = TEXT.format(number=len(shapes), parameters=many.num_parameters, wait_ms=args.wait_ms)
    return run("variables", "Many variables", text, [Plan(Group(title, GOALS), ways)], args.rounds, args.results)


if __name__ == "__main__":
    sys.exit(main())
