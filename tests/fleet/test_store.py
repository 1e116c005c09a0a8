"""A fleet whose checkpoints are in an object store: exact through a ps killed in a write, resumed elsewhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from support.commands import psfleet
from support.local_fleet import START_SECS, training
from support.replay import assert_perceptron
from support.s3_server import BROKEN, S3Server, assert_not_stored, s3_server, use

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_lease import LEASE_SECS
from psfleet.errors import BAD_JOB, DONE

WORKERS = 2
BATCH_SIZE = 4
OPTIMIZER: dict[str, Any] = {"name": "momentum", "learning_rate": 0.05}
SECRET = "secret-of-the-tester"
STORE, FROZEN_STORE = "s3://fleet/leased", "s3://fleet/frozen"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """With a bucket `fleet`; commands find it by their environment."""
    with s3_server() as server:
        use(server, monkeypatch)
        server.make_bucket("fleet")
        yield server


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of two machines that share only the store."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    return first, second


class HeldPart:
    """A fault: the store holds the part of a step and a ps, and then refuses it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.is_held, self.is_released = threading.Event(), threading.Event()

    def __call__(self, method: str, path: str) -> tuple[str, str, str] | None:
        """See `Fault`."""
        if method != "PUT" or self._path not in path:
            return None
        self.is_held.set()
        self.is_released.wait(START_SECS)
        return BROKEN


def sections(num_ps: int, steps: int, store: str = "s3://fleet/run") -> dict[str, Any]:
    """Of a job file. All servers of one process have the same buckets, so each test has a prefix of its own."""
    return {
        "programs": ["paced_exact_program", "exact_graph_program", "exact_keras_program"],
        "options": {"front_end": "graph", "batch_size": BATCH_SIZE},
        "fleet": {"ps": num_ps, "workers": WORKERS},
        "optimizer": OPTIMIZER,
        "train": {"steps": steps, "batch_size": BATCH_SIZE},
        "checkpoint": {"every_steps": 5, "keep": 2, "store": store},
    }


@pytest.mark.extended
def test_a_ps_killed_in_its_write_and_a_resume_on_another_machine(
    server: S3Server, machines: tuple[Path, Path]
) -> None:
    first, second = machines
    held = server.fault = HeldPart("00000010-g1/ps-1-of-2")
    with training(first, **sections(num_ps=2, steps=20)) as fleet:
        fleet.wait_for(held.is_held.is_set, START_SECS, "the part of step 10")
        fleet.kill("ps", 1)
        held.is_released.set()
        fleet.gates.hurry()
        assert fleet.end() == 0, fleet.tails()
        report = fleet.report()
        assert report.checkpoint is not None
        assert report.checkpoint.path == "s3://fleet/run/checkpoints/00000020-g2"
        assert [(event.role, event.kind) for event in report.events] == [("ps", "restarted")]
        assert report.events[0].steps_lost >= 5, "the checkpoint of step 10 was not complete"
        assert not (fleet.out / "checkpoints").exists()
        assert_exact(fleet.out, first, 20)
        assert_not_stored(SECRET, fleet.out)
    with training(second, **sections(num_ps=1, steps=25)) as fleet:
        fleet.gates.hurry()
        assert fleet.end() == 0, fleet.tails()
        report = fleet.report()
        assert [(each.first_step, each.final_step) for each in report.attempts] == [(0, 20), (20, 25)]
        assert_exact("s3://fleet/run", second, 25)
    left = StoreFolder("s3://fleet/run/checkpoints").iterdir()
    assert {folder.name for folder in left} == {"00000020-g2", "00000025-g3"}


@pytest.mark.extended
def test_a_second_fleet_on_the_store_is_refused_and_the_first_one_trains_on(
    server: S3Server, machines: tuple[Path, Path]
) -> None:
    first, second = machines
    with training(first, **sections(num_ps=1, steps=60, store=STORE)) as fleet:
        fleet.wait_for(lambda: written(server, "00000005-g1"), START_SECS, "a checkpoint")
        fleet.gates.hold(0)
        with training(second, **sections(num_ps=1, steps=60, store=STORE)) as other:
            assert other.end(START_SECS + LEASE_SECS) == BAD_JOB, other.tails()
            error = other.report().error
            assert error is not None
            assert f"another fleet trains on {STORE}" in error
        fleet.gates.release(0)
        fleet.gates.hurry()
        assert fleet.end() == 0, fleet.tails()
        assert_exact(STORE, first, 60)


@pytest.mark.extended
def test_a_fleet_that_was_frozen_ends_once_another_one_has_its_store(
    server: S3Server, machines: tuple[Path, Path]
) -> None:
    first, second = machines
    with ExitStack() as stack:
        job = sections(num_ps=1, steps=60, store=FROZEN_STORE)
        with training(first, **job) as frozen:
            frozen.wait_for(lambda: written(server, "00000005-g1"), START_SECS, "a checkpoint")
            pid = frozen.pid("worker", 0)
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            other = stack.enter_context(training(second, **job))
            other.gates.hurry()
            assert other.end(START_SECS + 2 * LEASE_SECS) == 0, other.tails()
            left = {folder.name for folder in StoreFolder(f"{FROZEN_STORE}/checkpoints").iterdir()}
            frozen.gates.hurry()
            os.kill(pid, signal.SIGCONT)
            code, said = frozen.end(), frozen.report().error or ""
            # TensorFlow can crash in a process that was frozen for a minute (docs/traps.md). The next chief finds a run
            # that is done.
            has_crashed = "SIGSEGV" in frozen.screen.read_text()
            assert code == (DONE if has_crashed else BAD_JOB), frozen.tails()
            assert has_crashed or f"has taken {FROZEN_STORE}" in said
            assert {folder.name for folder in StoreFolder(f"{FROZEN_STORE}/checkpoints").iterdir()} >= left
            assert_exact(FROZEN_STORE, second, 60)


def written(server: S3Server, name: str) -> bool:
    """Whether a checkpoint was committed since the server was started."""
    return any(method == "PUT" and f"{name}/manifest.json" in path for method, path in server.requests)


def assert_exact(source: Path | str, folder: Path, steps: int) -> None:
    """`psfleet weights` exports the weights of one process that makes those steps."""
    out = folder / f"weights-{steps}.safetensors"
    done = psfleet(folder, "weights", str(source), "--out", str(out), timeout_secs=START_SECS)
    assert done.returncode == 0, done.stderr
    found = safetensors.numpy.load_file(out)
    assert_perceptron(found, OPTIMIZER, workers=WORKERS, batch_size=BATCH_SIZE, steps=steps)
