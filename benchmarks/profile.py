"""Profiles the CPU time of a synchronous step by role and by kind of work, with `perf` (Linux, root).

2 workers + 1 ps as processes of this machine. All of the machine is sampled for some seconds of training.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import resnet50
from benchmarks.children import ChildError, Children
from benchmarks.contenders import START_SECS, Measures, python, run_secs
from benchmarks.interleaving import Contender, Plan, at_least, new_parser, run
from benchmarks.psfleet_run import JOB, WAITING_JOB, read_report, settings, window_of
from benchmarks.results import Comparison, Group
from benchmarks.workload import HIDDEN, Workload
from psfleet.polling import wait_until
from psfleet.report.history import History

HERTZ = 999
RECORD_SECS = 5.0
PERF_SECS = 120.0
"""For reading what was recorded."""
STEPS = {128: 3000, 1024: 700}
SAMPLE = re.compile(r"^\s*(?P<pid>\d+)\s+[0-9a-f]+\s+(?P<symbol>.+?)\s+\((?P<library>[^()]*|\[[^\]]*\])\)\s*$")
ALL, OTHER = "all", "other"
PS, WORKER = "ps", "worker"
MEASURE = "cpu_ms"


@dataclass(frozen=True)
class Kind:
    """A kind of work: samples in whose symbol and library the patterns are found."""

    name: str
    symbol: re.Pattern[str]
    library: re.Pattern[str]


KERNEL, TENSORFLOW, ANY = re.compile("kernel"), re.compile("tensorflow"), re.compile("")
KINDS = (
    Kind("socket copies", re.compile("_copy_(from|to)_iter|copy_folio|check_object_size|virt_addr_valid"), KERNEL),
    Kind("new pages of memory", re.compile("clear_page|page|folio|vma|pte_|memcg|zap_|pfnblock|madvise"), KERNEL),
    Kind(
        "thread switches",
        re.compile("futex|sched|switch|wake|spin|rseq|irqentry|user_mode|epoll|eventfd|plist|pick_|enqueue_|dequeue_"),
        KERNEL,
    ),
    Kind("TCP/IP and the rest of the kernel", ANY, KERNEL),
    Kind("memory copies", re.compile("memmove|memcpy|TensorBlockIO.*4Copy"), ANY),
    Kind(
        "update, sums, checks",
        re.compile("TensorAssignOp|InnerMostDimReducer|FullReducer|CheckNumerics|ApplyAdam|ApplyGradient"),
        TENSORFLOW,
    ),
    Kind("matrices", re.compile("dnnl|gebp|gemm|MatMul|Softmax|BiasOp"), TENSORFLOW),
    Kind("matrices", re.compile(r"^\[unknown\]$"), re.compile(r"anon|unknown|perf-\d+\.map|^$")),
    Kind("gRPC", re.compile("grpc|chttp2"), ANY),
    Kind("TensorFlow's executor", ANY, TENSORFLOW),
    Kind("malloc, locks, threads", ANY, re.compile(r"libc\.so|ld-linux|libpthread|libstdc|vdso")),
    Kind("Python", ANY, re.compile("python")),
)
"""The first one that a sample belongs to is its kind."""
NAMES = tuple(dict.fromkeys([*(kind.name for kind in KINDS), OTHER]))
TEXT = """CPU milliseconds of a synchronous step of psfleet by kind of work: samples of the whole machine (perf at 999
Hz, {secs:g} s in each run), 2 workers and 1 ps on loopback. The MLPs are those of the first table, with Adam; the
last group is the data plane alone, with constant gradients and gradient descent. `update, sums, checks` are
passes over memory by TensorFlow: of the ps sums, average and update, of a worker the check for finite
gradients. `matrices` includes all code that oneDNN generates. Ratios are shares."""


def main() -> int:
    """Parses the command line, measures, writes the result."""
    parser = new_parser("profile", __doc__, rounds=3)
    parser.add_argument("--secs", type=at_least(1), default=RECORD_SECS, help="sampled in a run (default 5)")
    args = parser.parse_args()
    variables = Workload(0, "sgd", 80, warmup_steps=5, batch_size=4, shapes=resnet50.shapes(), wait_ms=20)
    workloads = [*(Workload(hidden, "adam", STEPS[hidden]) for hidden in HIDDEN), variables]
    plans = [plan(workload, args.secs) for workload in workloads]
    text = TEXT.format(secs=args.secs)
    return run("profile", "Where the CPU time of a step goes", text, plans, args.rounds, args.results)


def plan(workload: Workload, secs: float) -> Plan:
    """All kinds of work of one model's steps; the first contender trains."""
    profile = Profile(workload, secs)
    ways = [Contender(ALL, profile.measure), *(Contender(name, partial(profile.of, name)) for name in NAMES)]
    shares = tuple(Comparison(name, ALL, None, MEASURE) for name in NAMES)
    return Plan(Group(f"{workload.num_parameters:,} parameters", shares), ways)


class Profile:
    """The newest profile of a model's steps."""

    def __init__(self, workload: Workload, secs: float) -> None:
        self._workload = workload
        self._secs = secs
        self._by_kind: dict[str, Measures] = {}

    def measure(self) -> Measures:
        """Trains; the CPU time of all kinds."""
        self._by_kind = {}
        samples, step_ms = record(self._workload, self._secs)
        per_step = step_ms / (self._secs * HERTZ)
        for name in NAMES:
            ps, worker = samples[PS, name] * per_step, samples[WORKER, name] * per_step
            self._by_kind[name] = {MEASURE: ps + worker, "ps_cpu_ms": ps, "workers_cpu_ms": worker}
        columns = self._by_kind[OTHER]
        return {column: sum(found[column] for found in self._by_kind.values()) for column in columns}

    def of(self, kind: str) -> Measures:
        """One kind's part of the newest profile."""
        if not self._by_kind:
            raise ChildError("the training failed")
        return self._by_kind[kind]


def record(workload: Workload, secs: float) -> tuple[Counter[tuple[str, str]], float]:
    """Trains and samples.

    Returns:
        The number of samples by role and kind of work, and the mean milliseconds of a step.

    Raises:
        ChildError: perf failed, or the training ended before the last sample.
    """
    flags = [part for setting in settings(workload) for part in ("--set", setting)]
    job = WAITING_JOB if workload.shapes else JOB
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder, Children() as children:
        out, data = Path(folder, "run"), Path(folder, "perf.data")
        child = children.start("psfleet", python("psfleet", "train", str(job), "--out", str(out), "--fresh", *flags))
        wait_until(partial(is_warm, out, workload), START_SECS, "the end of the warm-up")
        perf(
            "record", "--all-cpus", "--event=cpu-clock", f"--freq={HERTZ}", f"--output={data}", "--", "sleep", str(secs)
        )
        sampled_until, found = time.time(), roles()
        children.wait(child, "training", START_SECS + run_secs(workload))
        read_report(out, workload.total_steps)
        if History(out / History.FILE_NAME).curve()[-1].time < sampled_until:
            raise ChildError("the training ended before the last sample: measure fewer seconds")
        script = perf("script", f"--input={data}", "--fields=pid,ip,sym,dso", "--no-demangle")
        return Counter(kinds_of(script.splitlines(), found)), window_of(out, workload).mean_ms


def is_warm(out: Path, workload: Workload) -> bool:
    """Whether the history of a run has a point after the warm-up."""
    file = out / History.FILE_NAME
    return file.exists() and any(point.step >= workload.warmup_steps for point in History(file).curve())


def perf(*arguments: str) -> str:
    """Runs perf; what it prints.

    Raises:
        ChildError: It is not there, or fails.
    """
    try:
        done = subprocess.run(["perf", *arguments], capture_output=True, text=True, timeout=PERF_SECS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        raise ChildError(f"perf {arguments[0]}: {' '.join(str(said).split())}") from error
    return done.stdout


def roles() -> dict[int, str]:
    """The role of each ps and worker of this machine, by process id: the names of their main threads."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/comm"):
        # A process may have ended by now.
        with suppress(OSError):
            name = file.read_text().split()[0]
            if name in (PS, WORKER):
                found[int(file.parent.name)] = name
    return found


def kinds_of(lines: Iterable[str], roles: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Role and kind of work of each sample of these processes, from the lines of `perf script`."""
    for line in lines:
        sample = SAMPLE.match(line)
        if sample is not None and (role := roles.get(int(sample["pid"]))) is not None:
            yield role, kind_of(sample["symbol"], sample["library"])


def kind_of(symbol: str, library: str) -> str:
    """The first kind of work that a sample belongs to."""
    for kind in KINDS:
        if kind.symbol.search(symbol) and kind.library.search(library):
            return kind.name
    return OTHER


if __name__ == "__main__":
    sys.exit(main())
