"""`psfleet task`: fleets that no launcher starts, on one host and on two.

The services are forked, except in the last test; test_start.py starts some in new interpreters.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.commands import psfleet, service
from support.network_hosts import two_hosts
from support.tiny_job import END_SECS, JOB, PRELUDE, entries

from psfleet.addresses import parse_tf_config
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors
from psfleet.job.job import load_job
from psfleet.launch.task import Wanted, environment, task_of
from psfleet.polling import wait_until
from psfleet.processes.child import MODULES
from psfleet.processes.command import Process
from psfleet.processes.ports import free_addresses
from psfleet.report.schema import Report
from psfleet.tls import certificates

GATE = """
from pathlib import Path
from psfleet.polling import wait_until

wait_until(Path({gate!r}).exists, {secs}, "the test")
"""
"""Holds the workers back until the test has tried the ports of the ps."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has a job file with 2 workers, and its program."""
    (tmp_path / "job.yaml").write_text(JOB.replace("workers: 1", "workers: 2"))
    (tmp_path / "program.py").write_text(PRELUDE)
    return tmp_path


def test_a_fleet_trains_by_tf_config_and_saves_at_sigterm(folder: Path) -> None:
    job = load_job(folder / "job.yaml", ["train.steps=1000000"])
    at = [address.data for address in free_addresses(3)]
    cluster = {"ps": at[:1], "chief": at[1:2], "worker": at[2:]}
    log = folder / "chief-0.txt"

    @contextmanager
    def started(kind: str) -> Iterator[Process]:
        text = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
        task = task_of(job, Wanted(), parse_tf_config(text))
        variables = environment(job, task, folder, folder / "out", None, 0, is_text=False)
        process = service(MODULES[task.role], {**variables, "TF_CONFIG": text}, folder / f"{kind}-0.txt")
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def trains() -> bool:
        return log.exists() and any(entry.get("event") == "progress" for entry in entries(log))

    (folder / "out").mkdir()
    with ExitStack() as stack:
        processes = [stack.enter_context(started(kind)) for kind in cluster]
        wait_until(trains, END_SECS, "a first step", poll_secs=0.05)
        processes[1].send_signal(signal.SIGTERM)
        codes = [exit_code(process, folder) for process in processes]
    assert codes == [143, 143, 143]
    report = Report.read(folder / "out")
    assert (report.status, report.exit_code) == ("stopped", 143)
    newest = store.newest(folder / "out" / "checkpoints")
    assert newest is not None
    assert newest.step == report.final_step > 0


@pytest.mark.extended
@pytest.mark.parametrize("replication", ["between_graph", "in_graph"])
def test_a_fleet_trains_on_two_hosts(replication: str, folder: Path) -> None:
    """The ps and the chief on one, the other two workers on the second; with TLS where stunnel4 is installed.

    Then only tunnels lead from host to host, which the processes of a host share. There are none within a host.
    """
    in_graph = f"update.replication={replication}"
    tls = shutil.which("stunnel4") is not None
    certificates.make(folder / "certs")
    (folder / "job.yaml").write_text(JOB.replace("workers: 1", "workers: 3"))
    gate = folder / "gate"
    with (folder / "program.py").open("a") as program:
        program.write(GATE.format(gate=str(gate), secs=END_SECS))
    with two_hosts() as (first, second), ExitStack() as stack:

        def start(role: str, index: int) -> Process:
            settings = ("--set", f"tls={str(tls).lower()}", "--set", in_graph)
            shared = ("--ps", f"{first.ip}:2222", "--out", "out", *settings)
            own = ("--role", role, "--index", str(index), *(("--tls", f"certs/{role}") if tls else ()))
            host = first if index == 0 else second
            log = folder / f"{role}-{index}.txt"
            return stack.enter_context(host.runs(log, folder, "task", "job.yaml", *own, *shared))

        ps, *workers = [start("ps", 0), *(start("worker", index) for index in range(3))]
        wait_until(lambda: "ps is ready" in text(folder, "ps-0") or ps.poll(), END_SECS, "the ps")
        assert second.reaches(first.ip, 2222) == (not tls)
        assert second.reaches(first.ip, 2225) == tls
        gate.touch()
        assert [exit_code(process, folder) for process in (ps, *workers)] == [0] * 4, logs(folder)
    report = Report.read(folder / "out")
    assert (report.status, report.final_step) == ("done", 20)
    assert {index: counts.used for index, counts in report.gradients.per_worker.items()} == dict.fromkeys("012", 20)
    assert "step 20 of 20" in text(folder, "worker-0")
    assert yaml.safe_load((folder / "out" / ".run").read_text())["platform"] == "hosts"
    plain = psfleet(folder, "train", "job.yaml", "--out", "plain", "--set", in_graph, timeout_secs=END_SECS)
    assert plain.returncode == 0, plain.stderr
    np.testing.assert_allclose(weight(folder / "out"), weight(folder / "plain"), rtol=0, atol=1e-6)


def test_the_command_ends_with_the_code_of_the_service_and_logs_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service refuses a setting before it imports TensorFlow."""
    monkeypatch.setenv("PSFLEET_ON_SIGTERM", "stay")
    words = ("task", "job.yaml", "--role", "ps", "--index", "0", "--ps", "127.0.0.1:2222")
    done = psfleet(folder, *words, timeout_secs=END_SECS)
    assert (done.returncode, done.stderr) == (78, "")
    assert "ERROR   ps        PSFLEET_ON_SIGTERM is 'stay', expected leave or nothing" in done.stdout


def weight(out: Path) -> np.ndarray:
    """The program's weight in the newest checkpoint."""
    newest = store.newest(out / "checkpoints")
    assert newest is not None
    return read_tensors(newest)["w"]


def exit_code(process: Process, folder: Path) -> int:
    """Waits for the end of a process; fails with all logs."""
    what = f"the end of process {process.pid}"
    try:
        code = wait_until(process.poll, END_SECS, what, done=lambda code: code is not None, poll_secs=0.05)
    except Exception as error:
        raise AssertionError(f"{error}\n{logs(folder)}") from error
    assert code is not None
    return code


def text(folder: Path, name: str) -> str:
    """What a process has logged."""
    path = folder / f"{name}.txt"
    return path.read_text() if path.exists() else ""


def logs(folder: Path) -> str:
    """The ends of all logs."""
    return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.txt")))
