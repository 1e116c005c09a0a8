"""Measures how long LeNet-5 trains on MNIST until it has an accuracy: psfleet and its peers, in turn.

2 workers + 1 ps, or what a peer has instead, as processes of this machine. The time begins after a warm-up and ends
with the first evaluation that finds the accuracy. Each run has a seed of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import contenders
from benchmarks.children import Child, ChildError, Children
from benchmarks.contenders import START_SECS, Measures, python, reached, run_secs
from benchmarks.cpu_time import cpu_time
from benchmarks.digits.data import TEST_BATCH, reader
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.peers import starting
from benchmarks.psfleet_run import COLOCATED
from benchmarks.results import Comparison, Group
from benchmarks.timing import Reached
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, OPTIMIZERS, Workload
from psfleet.polling import wait_until
from psfleet.report.history import History, Point
from psfleet.report.schema import EvaluationLog

JOB = Path(__file__).parents[1] / "examples" / "lenet" / "job.yaml"
ACCURACY = 0.988
EVERY = 100
"""Synchronous steps between two evaluations, of two gradients each; asynchronous ones have one."""
STEPS = 3000
SECS = "secs"
PEERS = ("ddp", "ray", "stock")
COMPARISONS = (
    *(Comparison(name, peer, None, SECS) for name in ("psfleet", "psfleet colocated") for peer in PEERS),
    Comparison("psfleet async", "ps_strategy", None, SECS),
)
TEXT = """LeNet-5 of `examples/lenet` on MNIST, Adam with rate {rate}, batch {batch} per worker, 2 workers and 1 ps on
loopback; `psfleet colocated` has a ps in each worker. Seconds from the end of a warm-up of {warmup} steps, in which all
processes start, to the end of the first evaluation on the 10,000 test images that finds {accuracy:.1%}; evaluations are
{every} steps apart. psfleet evaluates beside the training, all others pause for it. `psfleet async` and `ps_strategy`
count global steps of one gradient each, and have twice as many in the warm-up and between two evaluations; all others
count steps of two gradients. Each run has other initial weights and another order of the images. psfleet trains the
Keras model with `tf.data`; the others have all images in memory and write the same layers in operations of TensorFlow,
or in PyTorch. The mean of a step includes the evaluations."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("time_to_accuracy", __doc__)
    parser.add_argument("--mnist", required=True, metavar="FOLDER", help="with the four idx files, gzipped or not")
    parser.add_argument("--accuracy", type=share, default=ACCURACY, help=f"of the test images (default {ACCURACY})")
    parser.add_argument("--steps", type=at_least(EVERY), default=STEPS, help=f"give up after so many (default {STEPS})")
    args = parser.parse_args()
    folder = Path(args.mnist).absolute()
    try:
        reader().read_mnist(folder)
    except (OSError, ValueError) as error:
        parser.error(f"--mnist: {error}")
    sizes = {"accuracy": args.accuracy, "evaluate_steps": EVERY}
    workload = Workload(0, OPTIMIZERS[0], args.steps, mnist=str(folder), **sizes)
    text = TEXT.format(
        rate=LEARNING_RATE,
        batch=workload.batch_size,
        warmup=workload.warmup_steps,
        accuracy=args.accuracy,
        every=EVERY,
    )
    return run("accuracy", "LeNet-5 to an accuracy", text, [plan(workload)], args.rounds, args.results)


def share(text: str) -> float:
    """A type of arguments: a number above 0, and 1 at most."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share, expected a number above 0, and 1 at most")
    return value


def plan(workload: Workload) -> Plan:
    """All contenders."""
    doubled = {name: 2 * getattr(workload, name) for name in ("steps", "warmup_steps", "evaluate_steps")}
    twice = dataclasses.replace(workload, **doubled)
    ways = [
        Contender("psfleet", seeded(psfleet, workload)),
        Contender("psfleet colocated", seeded(partial(psfleet, overrides=COLOCATED), workload)),
        Contender("stock", seeded(contenders.stock, workload)),
        Contender("ddp", seeded(starting.ddp, workload), "torch"),
        Contender("ray", seeded(starting.ray, workload), "ray"),
        Contender("psfleet async", seeded(partial(psfleet, overrides=["update.mode=async"]), twice)),
        Contender("ps_strategy", seeded(starting.ps_strategy, twice)),
    ]
    return Plan(Group(f"{workload.accuracy:.1%} of the test images", COMPARISONS), ways)


def seeded(train: Callable[[Workload], Measures], workload: Workload) -> Callable[[], Measures]:
    """A function that trains once with a seed of its own."""
    return lambda: train(dataclasses.replace(workload, seed=random.randrange(2**31)))


def psfleet(workload: Workload, overrides: Sequence[str] = ()) -> Measures:
    """Trains the example by `psfleet train`, and ends it when an evaluation has found the accuracy."""
    flags = [part for setting in (*settings(workload), *overrides) for part in ("--set", setting)]
    with (
        tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder,
        Children() as children,
        cpu_time(children.pids) as cpu,
    ):
        command = python("psfleet", "train", str(JOB), "--out", folder, "--fresh", *flags)
        child = children.start("psfleet", command)
        out = Path(folder)
        newest = partial(newest_evaluation, out, child, workload)
        found = wait_until(newest, START_SECS + run_secs(workload), "the accuracy", done=lambda seen: seen is not None)
        assert found is not None
        return reached(dataclasses.asdict(found), cpu, workload)


def settings(workload: Workload) -> list[str]:
    """The workload as `key=value` texts."""
    return [
        "fleet.ps=1",
        f"fleet.workers={NUM_WORKERS}",
        "fleet.spares=0",
        f"options.data_dir={workload.mnist}",
        f"optimizer.learning_rate={LEARNING_RATE}",
        f"train.steps={workload.steps}",
        f"train.batch_size={workload.batch_size}",
        f"train.seed={workload.seed}",
        "train.shuffle=60000",
        f"evaluate.every_steps={workload.evaluate_steps}",
        f"evaluate.batch_size={TEST_BATCH}",
        "checkpoint.every_steps=null",
    ]


def newest_evaluation(out: Path, child: Child, workload: Workload) -> Reached | None:
    """The first evaluation of a run with the accuracy, or its last one when it is done; None: neither yet.

    Raises:
        ChildError: The run has failed, or begun again.
    """
    code = child.process.poll()
    log, history = out / EvaluationLog.FILE_NAME, out / History.FILE_NAME
    evaluations = EvaluationLog(log).curve() if log.exists() else []
    enough = [each for each in evaluations if each.metrics["accuracy"] >= workload.accuracy]
    if not enough and code is None:
        return None
    chosen = (enough or evaluations[-1:] or [None])[0]
    if chosen is None or (code and not enough):
        raise ChildError(f"psfleet ended with exit code {code}\n{child.tail()}")
    if chosen.generation > 1:
        raise ChildError(f"a ps was lost\n{child.tail()}")
    began = time_of(workload.warmup_steps, History(history).curve())
    return Reached(chosen.step, chosen.metrics["accuracy"], began, chosen.time)


def time_of(step: int, points: Sequence[Point]) -> float:
    """Unix time at which a run had a step, between two points of its history by linear interpolation.

    Raises:
        ChildError: The history does not go so far.
    """
    after = next((index for index, point in enumerate(points) if point.step >= step), None)
    if not after:
        raise ChildError(f"psfleet's history has no points before and after step {step}")
    first, last = points[after - 1 : after + 1]
    return first.time + (last.time - first.time) * (step - first.step) / (last.step - first.step)


if __name__ == "__main__":
    sys.exit(main())
