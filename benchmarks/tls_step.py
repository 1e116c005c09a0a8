"""Measures what `tls: true` costs: milliseconds per synchronous step in containers, plain and with TLS in turn.

2 workers + 1 ps with docker compose on this machine, so that both ends of each connection share its cores. Needs the
images (`make images`).
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks.machine import machine_facts
from benchmarks.psfleet_run import JOB
from benchmarks.workload import HIDDEN, OPTIMIZERS, Workload
from psfleet.job.job import Job, load_job
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose import render as compose_file
from psfleet.tls import certificates

COMMAND_SECS = 120.0
RUN_SECS = 600.0


def main() -> int:
    """Parses the command line, measures, prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls_step", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each size, plain and with TLS (default 5)")
    parser.add_argument("--steps", type=int, default=200, help="steps of a run after 30 for warming up (default 200)")
    parser.add_argument("--json", type=Path, help="file for every figure")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Runs the finally blocks, which remove the fleet.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    facts = machine_facts()
    step_times: dict[int, dict[bool, list[float]]] = {hidden: {False: [], True: []} for hidden in HIDDEN}
    for index in range(args.rounds):
        for hidden, values in step_times.items():
            for tls in (False, True):
                step_ms = measure(Workload(hidden=hidden, optimizer=OPTIMIZERS[0], steps=args.steps), tls)
                values[tls].append(step_ms)
                kind = "TLS" if tls else "plain"
                print(f"round {index + 1}/{args.rounds}  hidden {hidden:>5}  {kind:<6} {step_ms:8.2f} ms", flush=True)
    for hidden, values in step_times.items():
        size = Workload(hidden=hidden, optimizer=OPTIMIZERS[0], steps=args.steps).num_parameters
        plain, secured = statistics.median(values[False]), statistics.median(values[True])
        print(f"{size:>9,} parameters: plain {plain:.2f} ms, TLS {secured:.2f} ms, ratio {secured / plain:.2f}")
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if args.json:
        rounds = {hidden: {"plain": values[False], "tls": values[True]} for hidden, values in step_times.items()}
        args.json.write_text(json.dumps({"machine": facts, "rounds_ms": rounds}, indent=2) + "\n")
    return 0


def measure(workload: Workload, tls: bool) -> float:
    """Median step of a fleet in containers from its report, in milliseconds."""
    job = _job(workload, tls)
    if tls:
        certificates.ensure(certificates_folder(job.name))
    content = compose_file.render(job, JOB)
    del content["services"]["tensorboard"]
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder:
        file = Path(folder, "compose.yaml")
        file.write_text(yaml.safe_dump(content))
        compose = ("docker", "compose", "--file", str(file))
        chief = f"{compose_file.project(job.name)}-chief-1"
        try:
            _run(*compose, "up", "--detach")
            code = _run("docker", "wait", chief, timeout_secs=RUN_SECS).strip()
            if code != "0":
                sys.exit(f"benchmark failed: exit code {code}\n{_run('docker', 'logs', chief)[-4000:]}")
            _run("docker", "cp", f"{chief}:/out/report.json", folder)
        finally:
            _run(*compose, "down", "--volumes", "--timeout", "0")
        return float(json.loads(Path(folder, "report.json").read_text())["step_secs"]["p50"]) * 1000


def _job(workload: Workload, tls: bool) -> Job:
    return load_job(
        JOB,
        (
            f"name=bench-{'tls' if tls else 'plain'}",
            f"tls={str(tls).lower()}",
            f"options.hidden={workload.hidden}",
            f"train.steps={workload.total_steps}",
            f"train.batch_size={workload.batch_size}",
        ),
    )


def _run(*command: str, timeout_secs: float = COMMAND_SECS) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_secs)
    if done.returncode != 0:
        sys.exit(f"benchmark failed: {' '.join(command)}: {done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
