"""A fleet that stands: clients and runs on it, and the loss of each of its processes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from support.command_line import Psfleet
from support.commands import standing
from support.standing_folder import state_of

import psfleet
from psfleet.errors import LostPeerError
from psfleet.job.sections import Device
from psfleet.platforms.standing import commands
from psfleet.platforms.standing.fleet_folder import FleetFolder, find
from psfleet.platforms.standing.state import TaskState
from psfleet.polling import wait_until
from psfleet.processes.identity import send_signal
from psfleet.service import settings
from psfleet.service.health import problem
from psfleet.tf.client import Fleet

SECS = 60.0
"""Far more than a process needs to start or to end."""
NOTICE_SECS = 15.0
"""Issue 13: until clients get an error after a ps was killed."""
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "client"
SLOW_CLOSE = """\
import atexit, os, signal, sys
import psfleet
import tensorflow as tf

fleet = psfleet.connect()
with tf.Graph().as_default() as graph, tf.device(fleet.device("ps", 0)):
    x = tf.constant(1) + 1
session = fleet.session(graph)
session.run(x)
# Before what psfleet has registered: the call that closes the session returns while the process ends.
atexit.register(os.kill, {ps}, signal.SIGCONT)
os.kill({ps}, signal.SIGSTOP)
session.close()
sys.exit(3)
"""
COMMAND = [sys.executable, "-P", "-m", "psfleet"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetFolder]:
    """A ps and a worker that stand; forked, while that of test_standing_tls.py starts as it does for users."""
    folder = tmp_path_factory.mktemp("lab")
    file = folder / "fleet.yaml"
    file.write_text("name: lab\nfleet: {ps: 1, workers: 1}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.STATE, str(folder / "state"))
        for name, value in standing().items():
            patch.setenv(name, value)
        # A command that ends: what it leaves is not below this process.
        up = subprocess.run([*COMMAND, "fleet", "up", str(file)], capture_output=True, text=True, check=False)
        assert (up.returncode, up.stdout) == (0, "lab: up, 1 ps and 1 worker\n"), up.stderr
        started = state_of(find("lab"))
        yield find("lab")
        last = state_of(find("lab"))
        commands.down("lab")
        assert not any(task.is_alive() for task in (*started.tasks, *last.tasks))
        assert not find_or_none("lab")


@pytest.fixture
def fleet(lab: FleetFolder) -> Iterator[Fleet]:
    """This process as a client."""
    with psfleet.connect("lab") as client:
        yield client


def find_or_none(name: str) -> FleetFolder | None:
    try:
        return find(name)
    except psfleet.errors.UsageError:
        return None


def serving(folder: FleetFolder, role: str, restarts: int) -> TaskState | None:
    """The task of a role once it serves after a number of restarts."""
    task = next(task for task in state_of(folder).tasks if task.role == role)
    is_serving = task.restarts == restarts and task.is_alive() and not problem(task.control_port)
    return task if is_serving else None


def example(name: str) -> Any:
    """A program of examples/client."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_fleet_that_is_up_is_listed_and_not_started_again(lab: FleetFolder, psfleet_here: Psfleet) -> None:
    shown = psfleet_here("status", "lab", "--json")
    assert shown.code == 0, shown.err
    assert re.findall(r'"role": "(\w+)", "index": 0, .*?"state": "running", "health": "healthy"', shown.out) == [
        "ps",
        "worker",
    ]
    file = lab.file()
    assert file is not None
    before = state_of(lab).model_dump()
    assert commands.up(file).name == "lab"
    with pytest.raises(psfleet.errors.UsageError, match="fleet lab is up with other settings"):
        commands.up(file.model_copy(update={"device": Device(intra_op_threads=1)}))
    assert state_of(lab).model_dump() == before
    assert lab.path.stat().st_mode & 0o077 == 0


def test_the_examples_with_variables_print_what_they_say(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(settings.FLEET, lab.access().model_dump_json())
    example("shared_variable").main(2.0)
    example("shared_variable").main(3.0)
    assert capsys.readouterr().out == "total is 2\ntotal is 5\n"
    example("two_containers").main()
    assert capsys.readouterr().out == (
        "problem_1: x is 1\nproblem_2: x is 2\n"
        "problem_1 after the reset of problem_1: gone\nproblem_2 after the reset of problem_1: 2\n"
    )


@pytest.mark.extended
def test_a_trainer_ends_when_a_loader_closes_the_queue_after_another_loader_was_killed(
    lab: FleetFolder, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(settings.FLEET, lab.access().model_dump_json())
    monkeypatch.syspath_prepend(EXAMPLES)
    with fleet.container("line"):
        queue = fleet.queue("points", [tf.float32, tf.float32], [[], []], capacity=200)
    killed = subprocess.Popen([sys.executable, str(EXAMPLES / "loader.py"), "--points", "1000000"])
    try:
        wait_until(queue.size, SECS, "the loader to fill the queue", done=lambda size: size == 200)
    finally:
        killed.kill()
        killed.wait()
    trainer = subprocess.Popen(
        [*COMMAND, "run", str(EXAMPLES / "trainer.py"), "--fleet", "lab"], stdout=subprocess.PIPE, text=True
    )
    example("loader").main(1800, keeps_open=False)
    assert capsys.readouterr().out == "1800 points loaded\n"
    out, _ = trainer.communicate(timeout=SECS)
    assert trainer.returncode == 0
    found = re.fullmatch(r"(\d+) steps, w is ([\d.]+) and b is ([\d.]+)\n", out)
    assert found is not None, out
    assert int(found[1]) in (100, 101)
    assert float(found[2]) == pytest.approx(2.0, abs=0.1)
    assert float(found[3]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.usefixtures("launches_forked")
def test_a_run_trains_on_the_ps_of_a_standing_fleet(lab: FleetFolder, tmp_path: Path) -> None:
    options = ["train.steps=20", "fleet.ps=3", "fleet.workers=1"]
    report = psfleet.train(
        ROOT / "examples/linear/job.yaml", out=tmp_path, overrides=options, fleet="lab", listener=lambda entry: None
    )
    assert (report.status, report.final_step) == ("done", 20), report.error
    assert all(task.restarts == 0 for task in state_of(lab).tasks)


@pytest.mark.extended
def test_a_client_whose_session_is_slow_to_close_ends_with_its_own_exit_code(lab: FleetFolder, tmp_path: Path) -> None:
    # One that does not run has the number 0, which would stop this process.
    ps = wait_until(lambda: state_of(lab).tasks[0], SECS, "the ps to run", done=lambda task: task.is_alive())
    script = tmp_path / "client.py"
    script.write_text(SLOW_CLOSE.format(ps=ps.pid))
    command = [*COMMAND, "run", str(script), "--fleet", "lab"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECS, check=False)
    assert done.returncode == 3, done.stderr


def test_a_client_is_told_when_a_ps_was_killed_and_can_use_the_next_one(lab: FleetFolder, fleet: Fleet) -> None:
    queue = fleet.queue("waits", [tf.int64], [[]])
    ps = state_of(lab).tasks[0]
    send_signal(ps.pid, ps.identity)
    began = time.monotonic()
    with pytest.raises(LostPeerError, match=r"ps 0 (of fleet lab has gone away|at .*refused)"):
        queue.dequeue()
    assert time.monotonic() - began < NOTICE_SECS
    wait_until(lambda: serving(lab, "ps", 1), SECS, "the ps to serve again")
    queue.enqueue(1)
    assert queue.size() == 1
