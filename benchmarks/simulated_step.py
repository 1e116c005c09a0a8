"""Measures how a synchronous step grows with the number of workers, and what a spare saves; compute is a wait.

All workers are processes of this machine, and wait instead of computing, so that they do not compete for processors.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.contenders import Measures
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.psfleet_run import psfleet
from benchmarks.results import Comparison, Group
from benchmarks.workload import HIDDEN, Workload, mlp_shapes

Shapes = tuple[tuple[int, ...], ...]

SMALL: Shapes = ((100_000,),)
MODELS = (SMALL, mlp_shapes(HIDDEN[-1]))
"""The shapes of the variables of one variable, and of the larger MLP of other benchmarks."""
WORKERS = (2, 4, 8, 16, 32, 64)
EFFICIENCY = {8: 0.95, 32: 0.9, 64: 0.9}
"""What the wait divided by the mean step should be at least, by number of workers."""
SPARE_WORKERS = 4
SLOW = ("options.slow_share=0.05", "options.slow_factor=5")
NUM_WAITS = 10
"""Operations of a step with slow ones, which a worker can abandon between two of them."""
MEAN = "mean_ms"
START_SECS_EACH = 15.0
"""For one of many workers that start at the same time on two cores."""
TEXT = """A step waits {wait_ms} ms instead of computing; gradients are constants; gradient descent, 1 ps. The larger
model has the variables of the larger MLP of the first table. The mean is over steps 20 and later, the median over all.
`wait` divided by the mean step is the efficiency. `5 % slow`: one in twenty of a worker's steps waits five times as
long, other ones in each round; `4 + 1` has a spare, so that a step need not wait for the slowest worker. The waits of
these runs are {num_waits} operations, one after the other, like the layers of a model."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("simulated_step", __doc__)
    parser.add_argument("--steps", type=at_least(2), default=60, help="counted steps of a run (default 60)")
    parser.add_argument("--slow-steps", type=at_least(2), default=150, help="the same with slow steps (default 150)")
    parser.add_argument("--wait-ms", type=at_least(1), default=250, help="simulated compute of a step (default 250)")
    parser.add_argument("--workers", type=at_least(1), nargs="+", default=WORKERS, help="default: 2 to 64")
    args = parser.parse_args()
    plans = [scaling(shapes, args.workers, args.steps, args.wait_ms) for shapes in MODELS]
    plans.append(spare(args.slow_steps, args.wait_ms))
    text = TEXT.format(wait_ms=args.wait_ms, num_waits=NUM_WAITS)
    return run("simulated", "Simulated compute", text, plans, args.rounds, args.results)


def workload(shapes: Shapes, steps: int, wait_ms: int) -> Workload:
    """What is trained: variables of these shapes."""
    return Workload(0, "sgd", steps, warmup_steps=20, batch_size=4, shapes=shapes, wait_ms=wait_ms)


def scaling(shapes: Shapes, workers: Sequence[int], steps: int, wait_ms: int) -> Plan:
    """One model with different numbers of workers."""
    trained = workload(shapes, steps, wait_ms)
    ways = [wait(wait_ms)]
    goals = []
    for number in workers:
        name = f"psfleet, {number} workers"
        ways.append(Contender(name, fleet(trained, number)))
        goals.append(Comparison("wait", name, EFFICIENCY.get(number), MEAN, is_minimum=True))
    return Plan(Group(f"{trained.num_parameters:,} parameters", tuple(goals)), ways)


def spare(steps: int, wait_ms: int) -> Plan:
    """Four workers of which some steps are slow, with and without a spare."""
    trained = workload(SMALL, steps, wait_ms)
    several = (f"options.num_waits={NUM_WAITS}",)
    clean, alone, helped = (f"psfleet, {name}" for name in ("4 + 0", "4 + 0, 5 % slow", "4 + 1, 5 % slow"))
    ways = [
        wait(wait_ms),
        Contender(clean, fleet(trained, SPARE_WORKERS, several)),
        Contender(alone, each_with_other_steps(trained, (*several, *SLOW))),
        Contender(helped, each_with_other_steps(trained, (*several, *SLOW, "fleet.spares=1"))),
    ]
    goals = (Comparison(helped, clean, 1.2, MEAN), Comparison(alone, clean, None, MEAN))
    return Plan(Group(f"{SPARE_WORKERS} workers and a spare, {trained.num_parameters:,} parameters", goals), ways)


def each_with_other_steps(trained: Workload, overrides: Sequence[str]) -> Callable[[], Measures]:
    """A run with slow steps; those of the next run are others: in few steps, more or fewer than usual are slow."""
    seeds = itertools.count(1)
    return lambda: fleet(trained, SPARE_WORKERS, (*overrides, f"options.seed={next(seeds)}"))()


def wait(wait_ms: int) -> Contender:
    """The limit of a step."""
    return Contender("wait", lambda: {"step_ms": float(wait_ms), MEAN: float(wait_ms)})


def fleet(trained: Workload, workers: int, overrides: Sequence[str] = ()) -> partial[Measures]:
    """A run of psfleet with a number of workers."""
    start_secs = START_SECS_EACH * max(workers, 12)
    settings = (f"fleet.workers={workers}", f"deadlines.start_secs={start_secs}", *overrides)
    return partial(psfleet, trained, settings, gradients=workers, start_secs=start_secs)


if __name__ == "__main__":
    sys.exit(main())
