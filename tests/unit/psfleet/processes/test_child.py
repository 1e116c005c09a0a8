"""One local process of a fleet: its environment, how its end is read, and what it is started again with."""

from __future__ import annotations

import json
import os
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psfleet import errors
from psfleet.polling import wait_until
from psfleet.processes import child
from psfleet.processes.child import MODULES, Task
from psfleet.service import settings
from psfleet.service.logs import parse_line

END_SECS = 20.0
SERVICE = """\
import json, os, signal, sys

OWN = {"time": 1.0, "level": "info"}

def main():
    print(json.dumps({**OWN, "cause": os.environ.get("PSFLEET_CAUSE", ""), "parent": os.getppid()}), flush=True)
    end = os.environ["END"].split(":")
    if end[0] == "signal":
        os.kill(os.getpid(), int(end[1]))
    if end[0] == "wait":
        signal.pause()
    if end[0] == "fail":
        print(json.dumps({**OWN, "event": "failed", "message": end[2], "exit_code": int(end[1])}))
    sys.exit(int(end[1]))

if __name__ == "__main__":
    main()
"""

NewTask = Callable[[str], Task]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes the service above that of every task, and keeps the fork server of this thread alive with one of them."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "sample_service.py").write_text(SERVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(MODULES, "worker")
        # Not TensorFlow, which the service does not use.
        patch.setattr(child, "PRELOADED", ())
        patch.setitem(MODULES, "ps", "sample_service")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv(settings.FORK_SERVER, "")
        standing = Task("ps", 99, {"END": "wait"}, folder / "ps-99.log")
        standing.start()
        yield
        standing.kill()


@pytest.fixture(params=["", settings.NO_FORK_SERVER], ids=["forked", "alone"])
def new_task(
    service: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[NewTask]:
    """Makes a task whose process ends as requested: exit:<code>, fail:<code>:<message>, signal:<number>, wait."""
    monkeypatch.setenv(settings.FORK_SERVER, request.param)
    tasks: list[Task] = []

    def new(end: str) -> Task:
        tasks.append(Task("ps", len(tasks), {"END": end}, tmp_path / f"ps-{len(tasks)}.log"))
        return tasks[-1]

    yield new
    for task in tasks:
        task.kill()


def ended(task: Task) -> int:
    """Starts a process and waits for its end; its exit code."""
    task.start()
    return end_of(task)


def end_of(task: Task) -> int:
    """Waits for the end of a process; its exit code."""
    code = wait_until(
        task.exit_code, END_SECS, f"the end of {task.name}", done=lambda code: code is not None, poll_secs=0.01
    )
    assert code is not None
    return code


def test_a_process_that_ends_by_itself_has_its_own_exit_code(new_task: NewTask) -> None:
    task = new_task("exit:75")
    assert ended(task) == errors.LOST_PEERS
    assert not task.was_killed()
    assert task.failure() is None
    assert task.cause_of_end() == "exit code 75"


def test_the_parent_of_a_process_is_the_fork_server_unless_that_is_off(new_task: NewTask) -> None:
    task = new_task("exit:0")
    assert ended(task) == errors.DONE
    (said,) = (parse_line(line) or {} for line in task.log.read_bytes().splitlines())
    is_alone = os.environ[settings.FORK_SERVER] == settings.NO_FORK_SERVER or sys.platform != "linux"
    assert (said["parent"] == os.getpid()) is is_alone


def test_a_process_that_says_why_it_fails_is_quoted(new_task: NewTask) -> None:
    task = new_task("fail:70:the loss is NaN")
    assert ended(task) == errors.PROGRAM_FAILED
    assert task.cause_of_end() == "the loss is NaN (exit code 70)"
    assert (task.failure() or {})["message"] == "the loss is NaN"


def test_the_cause_of_an_end_is_read_from_the_log_once(tmp_path: Path) -> None:
    """A launcher asks for it ten times a second as long as others train."""
    process: Any = SimpleNamespace(returncode=70, poll=lambda: 70)
    task = Task("worker", 1, {}, tmp_path / "worker-1.log", process=process)
    entry = {"time": 1.0, "level": "error", "event": "failed", "message": "the loss is NaN", "exit_code": 70}
    task.log.write_text(json.dumps(entry))
    assert task.cause_of_end() == "the loss is NaN (exit code 70)"
    task.log.unlink()
    assert task.cause_of_end() == "the loss is NaN (exit code 70)"


def test_a_process_that_a_signal_ended_has_128_more(new_task: NewTask) -> None:
    task = new_task(f"signal:{signal.SIGKILL:d}")
    assert ended(task) == errors.SIGNAL_BASE + signal.SIGKILL
    assert task.was_killed()
    assert task.cause_of_end() == "killed by SIGKILL"


def test_a_process_that_runs_is_signalled_and_killed(new_task: NewTask) -> None:
    task = new_task("wait")
    task.signal(signal.SIGTERM)
    task.start()
    assert task.exit_code() is None
    assert task.cause_of_end() == "it runs"
    task.signal(signal.SIGTERM)
    assert end_of(task) == errors.SIGNAL_BASE + signal.SIGTERM
    task.signal(signal.SIGTERM)
    task.start("killed by SIGTERM")
    task.kill()
    assert task.exit_code() == errors.SIGNAL_BASE + signal.SIGKILL


def test_a_process_that_is_started_again_learns_why_and_its_log_goes_on(new_task: NewTask) -> None:
    task = new_task("exit:75")
    ended(task)
    assert task.restarts == 0
    task.start("killed by SIGKILL")
    assert end_of(task) == 75
    assert task.restarts == 1
    entries = [parse_line(line) or {} for line in task.log.read_bytes().splitlines()]
    assert [entry["cause"] for entry in entries] == ["", "killed by SIGKILL"]


def test_a_process_that_says_nothing_is_not_quoted_with_the_words_of_the_one_before_it(new_task: NewTask) -> None:
    task = new_task("fail:75:lost a peer")
    ended(task)
    task.environment = {"END": "exit:70"}
    task.start(task.cause_of_end())
    assert end_of(task) == errors.PROGRAM_FAILED
    assert task.cause_of_end() == "exit code 70"


EMPTY = {"event": "fleet", "step": 0}
"""The chief's table before the ps have a shard."""
RESTORED = {"event": "starting", "step": 40}


@pytest.mark.parametrize(
    ("entries", "has_begun", "has_trained"),
    [
        ([], False, False),
        ([{"event": "starting"}, {"event": "fleet", "step": 40}, {"event": "fleet", "step": 40}], True, False),
        ([EMPTY, RESTORED, {"event": "fleet", "step": 40}], True, False),
        ([EMPTY, RESTORED, {"event": "fleet", "step": 41}], True, True),
        ([{"event": "fleet", "step": 40}, {"event": "fleet", "step": 41}], True, True),
        ([{"event": "starting"}, {"event": "progress", "step": 1}], True, True),
        ([{"event": "verified", "step": 100}], True, True),
    ],
    ids=[
        *("importing TensorFlow", "restored step 40", "restored after a first table", "the fleet trains on"),
        *("a chief came back to a fleet that trains", "the chief trains", "all is saved"),
    ],
)
def test_a_log_tells_whether_there_is_something_to_save(
    tmp_path: Path, entries: list[dict[str, Any]], has_begun: bool, has_trained: bool
) -> None:
    task = Task("worker", 0, {}, tmp_path / "worker-0.log")
    lines = [json.dumps({"time": 1.5, "level": "info", "message": "", **entry}) for entry in entries]
    task.log.write_text("\n".join(["a line of TensorFlow", *lines]))
    assert (task.has_begun(), task.has_trained()) == (has_begun, has_trained)


def test_a_stop_does_not_load_the_whole_log_of_a_long_run_into_memory(tmp_path: Path) -> None:
    """The chief writes a table of the fleet each second, for months."""
    table = json.dumps({"time": 1.0, "level": "info", "event": "fleet", "step": 7, "ps": ["x" * 1000]}) + "\n"
    task = Task("worker", 0, {}, tmp_path / "worker-0.log")
    task.log.write_text(table * 10_000)
    tracemalloc.start()
    try:
        assert (task.has_begun(), task.has_trained()) == (True, False)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("change", ["renamed", "deleted", "cut"])
def test_a_process_whose_log_was_replaced_counts_as_one_that_has_trained(new_task: NewTask, change: str) -> None:
    """As with logrotate: the process keeps writing to the file that it has open."""
    task = new_task("wait")
    task.log.write_text("of an earlier process\n")
    task.start()
    assert not task.has_trained()
    if change == "cut":
        os.truncate(task.log, 0)
    else:
        task.log.rename(task.log.with_suffix(".1"))
    if change == "renamed":
        task.log.touch()
    assert task.has_begun()
    assert task.has_trained()
    task.kill()
    assert task.failure() is None
    assert task.cause_of_end() == "killed by SIGKILL"


def test_a_process_with_an_empty_log_has_begun_after_a_while(
    new_task: NewTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = new_task("wait")
    task.start()
    wait_until(lambda: task.log.stat().st_size, END_SECS, "a line")
    os.truncate(task.log, 0)
    assert not task.has_begun()
    monkeypatch.setattr(child, "QUIET_SECS", 0.0)
    assert task.has_begun()


@pytest.mark.parametrize("own", [None, "{}"])
def test_a_process_does_not_have_the_tf_config_of_another_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    """As it is set in the pods of operators that start TensorFlow jobs."""
    monkeypatch.setenv(settings.TF_CONFIG, '{"cluster": {"chief": ["training-master:2222"]}}')
    started: list[Any] = []
    monkeypatch.setattr(child.fork_client, "start", lambda command, modules: started.append(command.environment))
    Task("ps", 0, {} if own is None else {settings.TF_CONFIG: own}, tmp_path / "ps-0.log").start()
    assert started[0].get(settings.TF_CONFIG) == own
