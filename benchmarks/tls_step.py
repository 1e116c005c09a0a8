"""Measures what `tls: true` costs: time and CPU time of a synchronous step in containers, plain and with TLS in turn.

2 workers + 1 ps with docker compose on this machine, so that both ends of each connection share its cores. Needs the
images (`make images`), and an engine whose processes this machine shows: Docker on Linux.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import yaml

from benchmarks.children import ChildError
from benchmarks.contenders import Measures, with_cpu
from benchmarks.cpu_time import cpu_time
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.psfleet_run import JOB, read_report, settings, window_of
from benchmarks.results import Comparison, Group
from benchmarks.workload import HIDDEN, NUM_WORKERS, OPTIMIZERS, Workload
from psfleet.job.job import Job, load_job
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose import render as compose_file
from psfleet.report.history import History
from psfleet.tls import certificates
from psfleet.tls.tunnel import PROGRAM

COMMAND_SECS = 120.0
RUN_SECS = 600.0
TLS, PLAIN = "psfleet, TLS", "psfleet, plain"
COMPARISONS = (Comparison(TLS, PLAIN, 1.3), Comparison(TLS, PLAIN, measure="cpu_ms"))
TEXT = """A ReLU MLP 784-hidden-hidden-10, batch 100 per worker, Adam, 2 workers and 1 ps in containers of one
machine, plain and with TLS."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("tls_step", __doc__)
    parser.add_argument("--steps", type=at_least(2), default=200, help="steps of a run after 30 for warming up")
    args = parser.parse_args()
    plans = [plan(Workload(hidden=hidden, optimizer=OPTIMIZERS[0], steps=args.steps)) for hidden in HIDDEN]
    return run("tls", "TLS", TEXT, plans, args.rounds, args.results)


def plan(workload: Workload) -> Plan:
    """One MLP, plain and with TLS."""
    group = Group(f"{workload.num_parameters:,} parameters", COMPARISONS)
    kinds = ((PLAIN, False), (TLS, True))
    return Plan(group, [Contender(name, partial(measure, workload, tls)) for name, tls in kinds])


def measure(workload: Workload, tls: bool) -> Measures:
    """Median step of a fleet in containers from its report, and the CPU time of its processes, in milliseconds."""
    job = _job(workload, tls)
    if tls:
        certificates.ensure(certificates_folder(job.name))
    content = compose_file.render(job, JOB)
    del content["services"]["tensorboard"]
    roots: list[int] = []
    with (
        tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder,
        cpu_time(lambda: roots) as cpu,
        cpu_time(lambda: roots, PROGRAM) as tunnels,
    ):
        file = Path(folder, "compose.yaml")
        file.write_text(yaml.safe_dump(content))
        compose = ("docker", "compose", "--file", str(file))
        chief = f"{compose_file.project(job.name)}-chief-1"
        try:
            _run(*compose, "up", "--detach")
            containers = _run(*compose, "ps", "--quiet").split()
            pids = _run("docker", "inspect", "--format", "{{.State.Pid}}", *containers).split()
            # 0: it has ended.
            roots += [int(pid) for pid in pids if pid != "0"]
            code = _run("docker", "wait", chief, timeout_secs=RUN_SECS).strip()
            if code != "0":
                raise ChildError(f"{chief} ended with exit code {code}\n{_run('docker', 'logs', chief)[-4000:]}")
            for name in ("report.json", History.FILE_NAME):
                _run("docker", "cp", f"{chief}:/out/{name}", folder)
        finally:
            _run(*compose, "down", "--volumes", "--timeout", "0")
        p50 = read_report(Path(folder), workload.total_steps).step_secs.p50
        if p50 is None:
            raise ChildError("psfleet's report: step_secs.p50 is null, expected a number")
        window = window_of(Path(folder), workload)
        times = (window.began, window.ended, window.steps)
        measures = with_cpu({"step_ms": p50 * 1000, "mean_ms": window.mean_ms}, cpu, *times, NUM_WORKERS)
        if tls:
            measures["tunnels_cpu_ms"] = with_cpu({}, tunnels, *times, NUM_WORKERS)["cpu_ms"]
        return measures


def _job(workload: Workload, tls: bool) -> Job:
    name = f"name=bench-{'tls' if tls else 'plain'}"
    return load_job(JOB, (name, f"tls={str(tls).lower()}", *settings(workload)))


def _run(*command: str, timeout_secs: float = COMMAND_SECS) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_secs)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"{' '.join(command)}: no end after {timeout_secs:g} s") from error
    if done.returncode != 0:
        raise ChildError(f"{' '.join(command)}: {done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
