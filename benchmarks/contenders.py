"""The contenders that TensorFlow 1 has: each starts its processes, trains one workload and returns its measures."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.children import Child, ChildError, Children
from benchmarks.cpu_time import CpuTime, cpu_time
from benchmarks.workload import NUM_WORKERS, Workload
from psfleet.processes.ports import free_addresses
from psfleet.service.library_variables import MEMORY

START_SECS = 180.0
"""For importing TensorFlow and opening a session, on a busy machine."""
STEP_SECS = 1.0
"""Longest mean step of any contender besides its wait, for deadlines."""
Measures = dict[str, float]
"""Figures of one run by their names in `results.MEASURES`."""


def compute(workload: Workload) -> Measures:
    """One process without a ps."""
    with Children() as children, cpu_time(children.pids) as cpu:
        child = children.start("compute", python("benchmarks.compute", workload.to_json()))
        return measured(children, [child], cpu, workload, gradients=1)


def stock(workload: Workload) -> Measures:
    """The stock recipe, 2 workers + 1 ps."""
    addresses = [address.data for address in free_addresses(1 + NUM_WORKERS)]
    cluster = {"ps": addresses[:1], "worker": addresses[1:]}
    with Children() as children, cpu_time(children.pids) as cpu:
        children.start("stock-ps-0", _stock(cluster, "ps", 0, workload))
        workers = [
            children.start(f"stock-worker-{index}", _stock(cluster, "worker", index, workload))
            for index in range(NUM_WORKERS)
        ]
        children.receive(workers[0], "an open session", START_SECS)
        for worker in workers[1:]:
            children.send(worker, "go")
            children.receive(worker, "an open session", START_SECS)
        return measured(children, workers, cpu, workload, gradients=NUM_WORKERS)


def bare(workload: Workload, *, is_colocated: bool = False) -> Measures:
    """Shared memory alone, 2 workers + 1 ps; colocated: 2 workers, each of which owns a half of the parameters."""
    owners = [address.data for address in free_addresses(NUM_WORKERS if is_colocated else 1)]
    command = [*_with_memory("benchmarks.bare_ps"), "--owners", json.dumps(owners)]
    command += ["--workload", workload.to_json()]
    with Children() as children, cpu_time(children.pids) as cpu:
        if not is_colocated:
            children.start("bare-ps", [*command, "--index=-1"])
        workers = [children.start(f"bare-{index}", [*command, f"--index={index}"]) for index in range(NUM_WORKERS)]
        return measured(children, workers, cpu, workload, gradients=NUM_WORKERS)


def runtime(workload: Workload) -> Measures:
    """Queues in TensorFlow's runtime, 2 workers + 1 ps."""
    ps, *workers = (address.data for address in free_addresses(1 + NUM_WORKERS))
    command = [*_with_memory("benchmarks.bare_runtime"), "--cluster", json.dumps({"ps": [ps], "worker": workers})]
    command += ["--workload", workload.to_json()]
    with Children() as children, cpu_time(children.pids) as cpu:
        children.start("runtime-ps", [*command, "--index=-1"])
        started = [children.start(f"runtime-{index}", [*command, f"--index={index}"]) for index in range(NUM_WORKERS)]
        return measured(children, started, cpu, workload, gradients=NUM_WORKERS)


def measured(
    children: Children, workers: Sequence[Child], cpu: CpuTime, workload: Workload, *, gradients: int
) -> Measures:
    """Waits for the step times of the workers, and returns their means with the CPU time of all children.

    A workload with an accuracy has the times of the first worker, which evaluates; the others train on.

    Args:
        gradients: Number of gradients in one step.
    """
    if workload.mnist:
        return reached(children.receive(workers[0], "the accuracy", run_secs(workload)), cpu, workload)
    times = [children.receive(worker, "step times", run_secs(workload)) for worker in workers]
    step_ms, mean_ms = (statistics.fmean(each[name] for each in times) for name in ("p50_ms", "mean_ms"))
    first = times[0]
    measures = {"step_ms": step_ms, "mean_ms": mean_ms}
    return with_cpu(measures, cpu, first["began"], first["ended"], first["num_steps"], gradients)


def reached(found: dict[str, Any], cpu: CpuTime, workload: Workload) -> Measures:
    """The measures of a contender from its `Reached`.

    Raises:
        ChildError: It has not got to the accuracy, or its CPU time was not sampled over the whole time.
    """
    if found["accuracy"] < workload.accuracy:
        raise ChildError(f"accuracy {found['accuracy']:.4f} after {found['steps']} steps")
    began, ended, steps = found["began"], found["ended"], found["steps"]
    secs = ended - began
    mean_ms = secs * 1000 / (steps - workload.warmup_steps)
    return {"secs": secs, "steps": steps, "mean_ms": mean_ms, "cpu_secs": _cpu_secs(cpu, began, ended)}


def with_cpu(measures: Measures, cpu: CpuTime, began: float, ended: float, steps: int, gradients: int) -> Measures:
    """The measures with CPU time per step and per gradient, of all processes together.

    Raises:
        ChildError: It was not sampled over the whole time.
    """
    cpu_ms = _cpu_secs(cpu, began, ended) * 1000 / steps
    return {**measures, "cpu_ms": cpu_ms, "cpu_ms_per_gradient": cpu_ms / gradients}


def _cpu_secs(cpu: CpuTime, began: float, ended: float) -> float:
    try:
        return cpu.secs(began, ended)
    except ValueError as error:
        raise ChildError(str(error)) from error


def python(module: str, *arguments: str) -> list[str]:
    """A command line that runs a module in this environment."""
    return [sys.executable, "-m", module, *arguments]


def run_secs(workload: Workload) -> float:
    """Deadline of a run whose processes have started."""
    return START_SECS + workload.total_steps * (STEP_SECS + workload.wait_ms / 1000)


def _with_memory(module: str) -> list[str]:
    """A command line of that module, whose memory is that of psfleet's processes."""
    return ["env", *(f"{name}={value}" for name, value in MEMORY.items()), *python(module)]


def _stock(cluster: dict[str, list[str]], role: str, index: int, workload: Workload) -> list[str]:
    task = ("--cluster", json.dumps(cluster), "--role", role, "--index", str(index))
    return python("benchmarks.stock", *task, "--workload", workload.to_json())
