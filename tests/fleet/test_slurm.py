"""The batch script of docs/hosts.md, with stand-ins for Slurm's commands on two hosts: `tests/support/slurm`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from support.documents import Document
from support.network_hosts import Host, two_hosts
from support.tiny_job import JOB, PRELUDE

from psfleet.checkpoint import store
from psfleet.polling import wait_until
from psfleet.report.schema import Report

ROOT = Path(__file__).parents[2]
SECS = 400.0
"""For seven processes that each import TensorFlow, on two busy cores."""
SIZE = {"fleet": {"ps": 2, "workers": 4}, "deadlines": {"start_secs": SECS}}

pytestmark = [pytest.mark.extended, pytest.mark.timeout(3 * SECS)]


def script() -> str:
    """The batch script, as the documentation shows it."""
    (found,) = (block.text for block in Document(ROOT / "docs" / "hosts.md").blocks() if "#SBATCH" in block.text)
    return found


def write_job(home: Path, steps: int) -> None:
    train = {"steps": steps, "batch_size": 4}
    (home / "job" / "job.yaml").write_text(yaml.safe_dump({**yaml.safe_load(JOB), **SIZE, "train": train}))


@contextmanager
def submitted(home: Path, hosts: tuple[Host, Host], job_id: int) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the batch script on the first host; ends all that it has started with the block."""
    commands = home / "bin"
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{commands}:{ROOT / 'tests/support/slurm'}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_NODELIST": ",".join(host.ip for host in hosts),
        "STAND_IN_NODES": " ".join(host.name for host in hosts),
    }
    command = hosts[0].command(["bash", str(home / "batch.sh")])
    with (home / f"slurm-{job_id}.out").open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def exit_code(process: subprocess.Popen[bytes], log: Path) -> int:
    """Waits for the end of the batch script; fails with what it and its tasks have printed."""
    try:
        return process.wait(SECS)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{error}\n{log.read_text()}") from error


def test_a_job_saves_when_slurm_asks_it_to_end_and_goes_on_when_it_is_submitted_again(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "job" / "program.py").write_text(PRELUDE)
    (tmp_path / "batch.sh").write_text(script())
    launcher = tmp_path / "bin" / "psfleet"
    launcher.write_text(f'#!/bin/bash\nexec {sys.executable} -m psfleet "$@"\n')
    launcher.chmod(0o755)
    out, log = tmp_path / "runs" / "mine", tmp_path / "slurm-1.out"
    with two_hosts() as hosts:
        write_job(tmp_path, 1000000)
        with submitted(tmp_path, hosts, 1) as process:
            wait_until(
                lambda: (process.poll(), log.read_text()), SECS, "a first step",
                done=lambda seen: seen[0] is not None or "step 1 of" in seen[1],
            )  # fmt: skip
            process.send_signal(signal.SIGTERM)
            assert exit_code(process, log) == 143, log.read_text()
        newest = store.newest(out / "checkpoints")
        assert newest is not None
        assert Report.read(out).final_step == newest.step > 0
        write_job(tmp_path, newest.step + 10)
        with submitted(tmp_path, hosts, 2) as process:
            log = tmp_path / "slurm-2.out"
            assert exit_code(process, log) == 0, log.read_text()
    report = Report.read(out)
    assert (report.status, report.final_step) == ("done", newest.step + 10)
    assert [each.first_step for each in report.attempts] == [0, newest.step]
