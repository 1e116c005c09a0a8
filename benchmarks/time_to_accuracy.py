"""Measures how long LeNet-5 trains on MNIST until it has an accuracy: psfleet and its peers, in turn.

2 workers + 1 ps, or what a peer has instead, as processes of this machine. The time begins with the first step and ends
with the first evaluation that finds the accuracy, by the process that trains. Each run has a seed of its own.
"""

from __future__ import annotations

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
from benchmarks.digits.clock import Reached
from benchmarks.digits.data import reader
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.peers import starting
from benchmarks.psfleet_run import COLOCATED
from benchmarks.results import Comparison, Group
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, OPTIMIZERS, Workload
from psfleet.polling import wait_until
from psfleet.report.schema import EvaluationLog, History

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
loopback. Seconds from the beginning of the first step to the end of the first evaluation on the 10,000 test images that
finds {accuracy:.1%}; evaluations are {every} synchronous steps apart, or {twice} asynchronous ones. psfleet evaluates
beside the training, all others pause for it. `psfleet async` and `ps_strategy` count global steps of one gradient each,
all others steps of two. Each run has other initial weights and another order of the images. psfleet trains the Keras
model with `tf.data`; the others have all images in memory and write the same layers in operations of TensorFlow, or in
PyTorch. The mean of a step includes the evaluations."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("time_to_accuracy", __doc__)
    parser.add_argument("--mnist", required=True, metavar="FOLDER", help="with the four idx files, gzipped or not")
    parser.add_argument("--accuracy", type=float, default=ACCURACY, help=f"of the test images (default {ACCURACY})")
    parser.add_argument("--steps", type=at_least(1), default=STEPS, help=f"give up after so many (default {STEPS})")
    args = parser.parse_args()
    folder = Path(args.mnist).absolute()
    try:
        reader().read_mnist(folder)
    except (OSError, ValueError) as error:
        parser.error(f"--mnist: {error}")
    sizes = {"accuracy": args.accuracy, "evaluate_steps": EVERY}
    workload = Workload(0, OPTIMIZERS[0], args.steps, mnist=str(folder), **sizes)
    text = TEXT.format(
        rate=LEARNING_RATE, batch=workload.batch_size, accuracy=args.accuracy, every=EVERY, twice=2 * EVERY
    )
    return run("accuracy", "LeNet-5 to an accuracy", text, [plan(workload)], args.rounds, args.results)


def plan(workload: Workload) -> Plan:
    """All contenders."""
    twice = dataclasses.replace(workload, steps=2 * workload.steps, evaluate_steps=2 * workload.evaluate_steps)
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
    settings = (
        f"fleet.ps=1 fleet.workers={NUM_WORKERS} fleet.spares=0 options.data_dir={workload.mnist} train.shuffle=60000 "
        f"optimizer.learning_rate={LEARNING_RATE} train.batch_size={workload.batch_size} train.seed={workload.seed} "
        f"train.steps={workload.steps} evaluate.every_steps={workload.evaluate_steps} checkpoint.every_steps=null"
    )
    flags = [part for setting in (*settings.split(), *overrides) for part in ("--set", setting)]
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


def newest_evaluation(out: Path, child: Child, workload: Workload) -> Reached | None:
    """The first evaluation of a run with the accuracy, or its last one when it has ended; None: neither yet.

    Raises:
        ChildError: The run has ended without any.
    """
    has_ended = child.process.poll() is not None
    log, history = out / EvaluationLog.FILE_NAME, out / History.FILE_NAME
    evaluations = EvaluationLog(log).curve() if log.exists() else []
    enough = [each for each in evaluations if each.metrics["accuracy"] >= workload.accuracy]
    if not enough and not has_ended:
        return None
    if not evaluations:
        raise ChildError(f"psfleet ended with exit code {child.process.returncode}\n{child.tail()}")
    chosen = (enough or evaluations[-1:])[0]
    # The first point is that of the first step, which ended then.
    first = History(history).curve()[0]
    return Reached(chosen.step, chosen.metrics["accuracy"], first.time - first.step_secs, chosen.time)


if __name__ == "__main__":
    sys.exit(main())
