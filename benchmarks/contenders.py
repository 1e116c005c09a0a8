"""The contenders: each starts its processes, trains one workload and returns the milliseconds of its median step."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.children import ChildError, Children
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, Workload
from psfleet.processes.ports import free_addresses

START_SECS = 120.0
"""For importing TensorFlow and opening a session, on a busy machine."""
STEP_SECS = 1.0
"""Longest mean step of any contender, for deadlines."""
JOB = Path(__file__).parent / "mlp" / "job.yaml"


def compute(workload: Workload) -> float:
    """Median step of one process without a ps, in milliseconds."""
    with Children() as children:
        child = children.start("compute", _python("benchmarks.compute", workload.to_json()))
        return float(children.receive(child, "step times", _run_secs(workload))["p50_ms"])


def stock(workload: Workload) -> float:
    """Median step of the stock recipe, 2 workers + 1 ps, in milliseconds: the mean of both workers' medians."""
    addresses = [address.data for address in free_addresses(1 + NUM_WORKERS)]
    cluster = {"ps": addresses[:1], "worker": addresses[1:]}
    with Children() as children:
        children.start("stock-ps-0", _stock(cluster, "ps", 0, workload))
        workers = [
            children.start(f"stock-worker-{index}", _stock(cluster, "worker", index, workload))
            for index in range(NUM_WORKERS)
        ]
        children.receive(workers[0], "an open session", START_SECS)
        for worker in workers[1:]:
            children.send(worker, "go")
            children.receive(worker, "an open session", START_SECS)
        times = [children.receive(worker, "step times", _run_secs(workload)) for worker in workers]
        return statistics.fmean(float(one["p50_ms"]) for one in times)


def psfleet(workload: Workload, overrides: Sequence[str] = ()) -> float:
    """Median step of `psfleet train` from its report, in milliseconds.

    Args:
        workload: What to train; the report's median includes the warm-up steps.
        overrides: Further `key=value` texts for `--set`.
    """
    settings = [
        f"options.hidden={workload.hidden}",
        f"optimizer.name={workload.optimizer}",
        f"optimizer.learning_rate={LEARNING_RATE}",
        f"train.steps={workload.total_steps}",
        f"train.batch_size={workload.batch_size}",
        *overrides,
    ]
    flags = [part for setting in settings for part in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as out, Children() as children:
        child = children.start("psfleet", _python("psfleet", "train", str(JOB), "--out", out, "--fresh", *flags))
        children.wait(child, "training", START_SECS + _run_secs(workload))
        report = json.loads((Path(out) / "report.json").read_text())
        final_step, p50 = report["final_step"], report["step_secs"]["p50"]
        if final_step != workload.total_steps or p50 is None:
            raise ChildError(
                f"psfleet's report: final_step {final_step}, step_secs.p50 {p50}, expected "
                f"{workload.total_steps} and a number"
            )
        return float(p50) * 1000


def _stock(cluster: dict[str, list[str]], role: str, index: int, workload: Workload) -> list[str]:
    task = ("--cluster", json.dumps(cluster), "--role", role, "--index", str(index))
    return _python("benchmarks.stock", *task, "--workload", workload.to_json())


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _run_secs(workload: Workload) -> float:
    return START_SECS + workload.total_steps * STEP_SECS
