"""Starts the processes of the peers, each in its environment, and returns their measures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks.children import Children
from benchmarks.contenders import START_SECS, Measures, measured, python
from benchmarks.cpu_time import cpu_time
from benchmarks.workload import NUM_WORKERS, Workload
from psfleet.processes.ports import free_addresses

ENVIRONMENTS = Path(__file__).parents[2] / ".bench"
VERSION_SECS = 60.0


def interpreter(environment: str) -> Path:
    """The Python of an environment that `make bench-peers` creates."""
    return ENVIRONMENTS / environment / "bin" / "python"


def why_missing(environment: str) -> str | None:
    """One line if an environment does not exist, else None."""
    if interpreter(environment).exists():
        return None
    return f".bench/{environment} does not exist; make bench-peers creates it"


def version(environment: str) -> str:
    """The version of the package that an environment is named after."""
    program = f"from importlib.metadata import version; print(version({environment!r}))"
    command = [str(interpreter(environment)), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECS, check=True)
    return done.stdout.strip()


def ddp(workload: Workload, wire: str = "float32") -> Measures:
    """PyTorch's DistributedDataParallel with gloo, 2 workers.

    Args:
        workload: What to train.
        wire: Type of the gradients that are sent: `float32` or `bfloat16`.
    """
    address = free_addresses(1)[0].data
    with Children() as children, cpu_time(children.pids) as cpu:
        workers = [
            children.start(f"ddp-{rank}", ddp_command(workload, wire, address, rank, NUM_WORKERS))
            for rank in range(NUM_WORKERS)
        ]
        for worker in workers:
            children.receive(worker, "a complete group", START_SECS)
        return measured(children, workers, cpu, workload, gradients=NUM_WORKERS)


def ddp_command(workload: Workload, wire: str, address: str, rank: int, workers: int) -> list[str]:
    """The command line of one worker; `address` is where rank 0 listens."""
    place = ("--rank", str(rank), "--workers", str(workers), "--address", address)
    command = [str(interpreter("torch")), "-m", "benchmarks.peers.ddp", *place]
    return [*command, "--wire", wire, "--workload", workload.to_json()]


def ray(workload: Workload) -> Measures:
    """Ray actors whose weights are averaged after each step, 2 workers."""
    with Children() as children, cpu_time(children.pids) as cpu:
        command = [str(interpreter("ray")), "-m", "benchmarks.peers.ray_averaging", workload.to_json()]
        driver = children.start("ray", command)
        children.receive(driver, "the actors", START_SECS)
        return measured(children, [driver], cpu, workload, gradients=NUM_WORKERS)


def ps_strategy(workload: Workload) -> Measures:
    """TensorFlow 2's ParameterServerStrategy: 2 workers + 1 ps + a coordinator; steps are global ones."""
    addresses = [address.data for address in free_addresses(2 + NUM_WORKERS)]
    cluster = json.dumps({"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]})
    with Children() as children, cpu_time(children.pids) as cpu:
        for role, index in (("ps", 0), *(("worker", index) for index in range(NUM_WORKERS)), ("chief", 0)):
            task = ("--cluster", cluster, "--role", role, "--index", str(index))
            command = python("benchmarks.peers.ps_strategy", *task, "--workload", workload.to_json())
            child = children.start(f"ps_strategy-{role}-{index}", command)
        children.receive(child, "the model", START_SECS)
        return measured(children, [child], cpu, workload, gradients=1)
