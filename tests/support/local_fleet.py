"""A fleet under test: `psfleet train` as a child, watched through its files and /proc, and never left behind."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from psfleet.addresses import Address
from psfleet.checkpoint import store
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import DeadlineError
from psfleet.polling import wait_until
from psfleet.processes.command import Process
from psfleet.report.schema import Report
from psfleet.service.logs import parse_line
from support.commands import started

T = TypeVar("T")

PROGRAM = Path(__file__).parent / "programs" / "paced_program.py"
"""A regression whose data wait at gates: see there."""
START_SECS = 60.0
"""Until a fleet trains; about 7 on an idle machine with 2 cores."""
END_SECS = 10.0
"""From the last step of a run to the end of its last process."""
POLL_SECS = 0.02
TAIL_LINES = 12

JOB: Mapping[str, Any] = {
    "name": "paced",
    "program": "paced_program:build",
    "fleet": {"ps": 1, "workers": 2},
    "optimizer": {"name": "adam", "learning_rate": 0.01},
    "train": {"steps": 100, "batch_size": 1, "seed": 7},
    "device": {"intra_op_threads": 1},
}


@dataclass(frozen=True)
class Gates:
    """The files that the program looks at before each example: see `paced_program`."""

    folder: Path

    def hold(self, shard: int | str) -> None:
        """Holds back the data of a shard, except what is prefetched already; or the `evaluation`, `build` and so on."""
        (self.folder / f"hold-{shard}").touch()

    def release(self, shard: int | str) -> None:
        """Lets the data of a shard, or the `evaluation`, continue."""
        (self.folder / f"hold-{shard}").unlink()

    def hurry(self) -> None:
        """From now on steps take no longer than they must."""
        (self.folder / "pace").unlink(missing_ok=True)


@dataclass(frozen=True)
class Fleet:
    """One `psfleet train` and what it started.

    Attributes:
        launcher: The command's process.
        arguments: Of the command `psfleet`.
        out: The run's folder.
        screen: What the command prints.
        steps: The target.
    """

    launcher: Process
    arguments: tuple[str, ...]
    out: Path
    screen: Path
    gates: Gates
    steps: int

    def wait_for(self, probe: Callable[[], T | None], timeout_secs: float, what: str) -> T:
        """What `probe` returns once that is true; fails with the ends of all logs if it never is."""
        try:
            found = wait_until(probe, timeout_secs, what, poll_secs=POLL_SECS)
        except DeadlineError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from error
        assert found is not None, "wait_until checked it"
        return found

    def wait_for_step(self, step: int, timeout_secs: float = START_SECS) -> None:
        """Waits until the chief has logged a step at least as high."""
        self.wait_for(lambda: self.step() >= step or self._has_ended(), timeout_secs, f"step {step}")
        assert self.step() >= step, f"the launcher ended before step {step}\n{self.tails()}"

    def wait_for_progress(self) -> None:
        """Waits until the chief has logged another step, such as the first one after a fault."""
        now = len(self.entries("progress"))
        self.wait_for(lambda: len(self.entries("progress")) > now, START_SECS, f"progress after step {self.step()}")

    def entries(self, event: str, role: str = "worker", index: int = 0) -> list[dict[str, Any]]:
        """A process's log entries of one kind, over all its restarts; the chief's unless another is named."""
        return [entry for entry in self.log(role, index) if entry.get("event") == event]

    def has_restarted(self, role: str) -> bool:
        """Whether the chief has noted that a process of this role (chief, worker, ps, ...) joined again."""
        return any(entry["message"].startswith(f"{role} ") for entry in self.entries("restarted"))

    def log(self, role: str = "worker", index: int = 0) -> list[dict[str, Any]]:
        """All entries of a process's log; the chief's unless another is named."""
        path = self.out / "logs" / f"{role}-{index}.log"
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return []
        return list(_entries(path, size))

    def step(self) -> int:
        """The newest step that the chief has logged; 0 before the first."""
        return max((entry["step"] for entry in self.entries("progress")), default=0)

    def pid(self, role: str, index: int) -> int | None:
        """The present process of a role and index; None if there is none."""
        named = f"{role}-{index}.log"
        # A service leads a session of its own; what it starts is not a service.
        found = (pid for pid in processes(self.out) if _output(pid).name == named and os.getsid(pid) == pid)
        return next(found, None)

    def kill(self, role: str, index: int) -> float:
        """Kills a process with SIGKILL; when, in seconds since 1970."""
        pid = self.pid(role, index)
        assert pid is not None, f"there is no {role} {index}\n{self.tails()}"
        os.kill(pid, signal.SIGKILL)
        return time.time()

    def run(self) -> str:
        """The name that the launcher gave the run; empty before the chief has logged it."""
        return next((entry["run"] for entry in self.log() if entry.get("run")), "")

    def shards(self) -> list[pb.ShardState]:
        """The state of each ps and its workers; empty if not all of them answer."""
        ready = re.compile("ps is ready at (.*)")
        logs = [self.log("ps", index) for index in range(len(list((self.out / "logs").glob("ps-*.log"))))]
        found = [[match[1] for entry in log if (match := ready.fullmatch(entry["message"]))] for log in logs]
        with FleetClient([Address.parse(texts[-1]) for texts in found if texts], self.run()) as client:
            states = client.describe()
        return [] if None in states else [state for state in states if state is not None]

    def end(self, timeout_secs: float = START_SECS) -> int:
        """Waits for the command; its exit code. Nothing that it started may be left."""
        self.wait_for(self._has_ended, timeout_secs, "the launcher to end")
        left = [_output(pid).name for pid in processes(self.out)]
        assert not left, f"the launcher ended before those that write {left}"
        assert self.launcher.returncode is not None
        return self.launcher.returncode

    def report(self) -> Report:
        """What the run left."""
        return Report.read(self.out)

    def done(self, timeout_secs: float = START_SECS) -> Report:
        """Waits for a run that reaches its target; its report, once everything that such a run promises is checked."""
        code = self.end(timeout_secs)
        assert code == 0, self.tails()
        ended = time.time()
        report = self.report()
        assert (report.status, report.exit_code, report.error) == ("done", 0, None)
        assert report.final_step == report.target_step == self.steps
        newest = self.checkpoint()
        assert report.checkpoint is not None
        assert (report.checkpoint.step, report.checkpoint.path) == (newest.step, str(newest.folder))
        assert newest.step == self.steps
        assert not self.entries("checkpoint_failed"), self.entries("checkpoint_failed")
        last = self.entries("progress")[-1]
        assert last["step"] == self.steps
        assert ended - last["time"] < END_SECS, f"the last step was {ended - last['time']:.1f} s before the end"
        return report

    def checkpoint(self) -> Checkpoint:
        """The newest whole checkpoint, read and verified here."""
        found = store.newest(self.out / "checkpoints")
        assert found is not None, "there is no checkpoint"
        return found

    def tails(self) -> str:
        """The ends of what was printed and logged."""
        logs = sorted((self.out / "logs").glob("*.log"))
        tails = [
            (path.name, path.read_text(errors="replace").splitlines()[-TAIL_LINES:]) for path in (self.screen, *logs)
        ]
        return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in tails)

    def _has_ended(self) -> bool:
        return self.launcher.poll() is not None


def paced_job(
    folder: Path, step_secs: float, programs: Sequence[str], sections: Mapping[str, Any]
) -> tuple[dict[str, Any], Gates]:
    """The content of a job file for a paced program, and the program's gates.

    Args:
        folder: Takes the programs, and a folder `gates`.
        step_secs: The pace until `gates.hurry()`.
        programs: The module to train, whose `build` takes `gates` and `step_secs`, and those that it imports.
        sections: Of the job file; where they are mappings, what they lack is as in `JOB`.
    """
    gates = Gates(folder / "gates")
    gates.folder.mkdir(exist_ok=True)
    (gates.folder / "pace").touch()
    for program in programs:
        shutil.copy(PROGRAM.with_name(f"{program}.py"), folder)
    options = {"gates": str(gates.folder), "step_secs": step_secs}
    job = {**JOB, "program": f"{programs[0]}:build", "options": options}
    merged = {
        name: {**job.get(name, {}), **section} if isinstance(section, Mapping) else section
        for name, section in sections.items()
    }
    return job | merged, gates


@contextmanager
def training(
    folder: Path,
    *arguments: str,
    step_secs: float = 0.05,
    hold: int | str | None = None,
    programs: Sequence[str] = (PROGRAM.stem,),
    **sections: Any,
) -> Iterator[Fleet]:
    """Starts `psfleet train` on the paced program, and ends everything with the block.

    Args:
        folder: Takes the job file, the program, and the run's folder `out`; the same again resumes the run.
        arguments: For the command.
        hold: The shard whose data are held from the beginning, or what else `Gates.hold` takes.
        step_secs, programs, sections: As for `paced_job`.
    """
    job, gates = paced_job(folder, step_secs, programs, sections)
    if hold is not None:
        gates.hold(hold)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    screen = folder / "screen.txt"
    out = folder / "out"
    command = ("train", str(folder / "job.yaml"), "--out", str(out), *arguments)
    launcher = started("psfleet", *command, folder=Path.cwd(), out=screen, err=screen)
    try:
        yield Fleet(launcher, command, out, screen, gates, job["train"]["steps"])
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        for pid in processes(out):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@functools.lru_cache(maxsize=64)
def _entries(path: Path, size: int) -> tuple[dict[str, Any], ...]:
    """A log's entries in its first bytes: logs only grow, and a test that waits reads the same ones again and again."""
    lines = path.read_bytes()[:size].splitlines()
    return tuple(entry for entry in map(parse_line, lines) if entry is not None)


def processes(out: Path) -> list[int]:
    """The services that log into a run's folder and what they started, whoever their parent is now."""
    logs = out.absolute() / "logs"
    return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _output(pid).parent == logs]


def _output(pid: int) -> Path:
    """The file that a process prints to; not there when the process is gone or not ours."""
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/1"))
    except OSError:
        return Path()
