"""A training program that cannot be trained ends every process with exit code 70, once, in the user's own words.

tests/unit/worker_service has what is found in data and numbers: test_input_pipeline.py, frontends/test_finite.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from support.command_line import Psfleet
from support.tiny_job import JOB, PRELUDE, entries, psfleet

from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.schema import Report

FAILED = 70
LOST_PEERS = 75
STALL_SECS = 2
END_SECS = 10.0
"""Until every process knows that the run is over."""
STALLED = """
import threading

def stalled(shard, shards):
    threading.Event().wait()
"""
TRACEBACK = "Traceback (most recent call last)"


def foreign_frames(text: str, folder: Path) -> list[str]:
    """The files in a traceback that are not the user's."""
    return [file for file in re.findall(r'File "(.*?)"', text) if not file.startswith(str(folder))]


def folder_with(folder: Path, program: str, job: str = JOB) -> Path:
    """The folder, with a job and its program."""
    (folder / "job.yaml").write_text(job)
    (folder / "program.py").write_text(program)
    return folder


@pytest.mark.parametrize(
    ("body", "code", "expected"),
    [
        (PRELUDE, 0, "job.yaml: valid, GraphProgram tiny: 2 parameters in 1 tensor"),
        ("build = 3", FAILED, "psfleet: program 'program:build': "),
    ],
    ids=["valid", "wrong type"],
)
def test_validate_prints_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, psfleet_here: Psfleet, body: str, code: int, expected: str
) -> None:
    monkeypatch.chdir(folder_with(tmp_path, body))
    said = psfleet_here("validate", "job.yaml")
    assert said.code == code, said
    [line] = (said.out + said.err).splitlines()
    assert line.startswith(expected)


@pytest.mark.extended
def test_validate_gives_up_a_data_set_that_gives_nothing(tmp_path: Path) -> None:
    """As users run it: the process that checks the program still waits for the data when it has its verdict."""
    deadlines = {"first_batch_secs": STALL_SECS, "stall_secs": STALL_SECS}
    body = PRELUDE + "data = lambda *shard: stalled(*shard)" + STALLED
    said = psfleet(folder_with(tmp_path, body, f"{JOB}deadlines: {deadlines}\n"), "validate", "job.yaml")
    assert said.returncode == LOST_PEERS, said
    [line] = (said.stdout + said.stderr).splitlines()
    assert line.startswith("psfleet: gave up after 2 s waiting for program 'program:build': ")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def build():\n    return 1 / 0", "build() raised ZeroDivisionError: division by zero"),
        ("import missing_module", "import program raised ModuleNotFoundError: No module named 'missing_module'"),
    ],
    ids=["exception", "import"],
)
def test_a_program_that_raises_is_told_with_its_own_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, psfleet_here: Psfleet, body: str, expected: str
) -> None:
    monkeypatch.chdir(folder_with(tmp_path, body))
    said = psfleet_here("validate", "job.yaml")
    assert said.code == FAILED, said
    assert expected in said.err.splitlines()[-1]
    assert TRACEBACK in said.err
    assert foreign_frames(said.err, tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["job.yaml", "program.py"]


@dataclass(frozen=True)
class Case:
    """A program that a fleet cannot train.

    Attributes:
        body: Comes behind `PRELUDE`.
        expected: In the one line that says why.
        traceback: The last lines of the user's traceback; none if no exception is the user's.
        overrides: Of the job.
        before_training: Whether no checkpoint may be there, not even that of step 0.
    """

    body: str
    expected: str
    traceback: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    before_training: bool = field(default=False, kw_only=True)


TWO_WORKERS = ("fleet.workers=2",)
CASES = {
    "module": Case(
        "", "program 'nowhere:build': no module 'nowhere'", (), ("program=nowhere:build",), before_training=True
    ),
    "exception in the model": Case(
        "def loss(batch):\n    raise ValueError('my own mistake')",
        "loss(batch) raised ValueError: my own mistake",
        ("raise ValueError('my own mistake')", "ValueError: my own mistake"),
        before_training=True,
    ),
    "exception in the data of worker 1": Case(
        "def rows(shard):\n"
        "    yield from x\n"
        "    if shard == 1:\n"
        "        raise OSError('disk 7 is gone')\n"
        "def data(shard, shards):\n"
        "    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([2]), args=[shard])",
        "reading the training data of shard 1 raised OSError: disk 7 is gone",
        ("raise OSError('disk 7 is gone')", "OSError: disk 7 is gone"),
        TWO_WORKERS,
    ),
    "NaN gradient of worker 1 with a finite loss": Case(
        "x[17] = 0\n"
        "def loss(batch):\n"
        "    return tf.reduce_mean(tf.sqrt(tf.square(tf.linalg.matvec(batch, tf.compat.v1.get_variable('w', [2])))))",
        "worker 1, step 3: the gradient of w is NaN or infinite, expected finite numbers",
        (),
        (*TWO_WORKERS, "checkpoint.every_steps=1"),
    ),
    "optimizer slot that becomes infinite on the ps": Case(
        "def loss(batch):\n"
        "    return 1e20 * tf.reduce_mean(tf.compat.v1.get_variable('w', [2]))",
        "ps 0: optimizer slot accumulator of w is NaN or infinite at step 4, expected finite numbers",
        (),
        ("optimizer={name: adagrad, learning_rate: 0.1}", "train.steps=4"),
    ),
    "failure in TensorFlow": Case(
        "def loss(batch):\n"
        "    return tf.gather(tf.compat.v1.get_variable('w', [2]), tf.cast(batch[0, 0], tf.int32) + 5)",
        "the program failed in TensorFlow: ",
    ),
}  # fmt: skip


IN_GRAPH = ("--set", "update.replication=in_graph")
DATA_OF_WORKER_1, NAN_OF_WORKER_1 = "exception in the data of worker 1", "NaN gradient of worker 1 with a finite loss"
DATA_IN_GRAPH = replace(CASES[DATA_OF_WORKER_1], overrides=(*TWO_WORKERS, IN_GRAPH[1]))


@pytest.mark.parametrize(
    "case",
    [*CASES.values(), pytest.param(DATA_IN_GRAPH, marks=pytest.mark.extended)],
    ids=[*CASES, f"{DATA_OF_WORKER_1}, in one graph"],
)
def test_a_program_that_cannot_be_trained_ends_every_process_with_its_reason(tmp_path: Path, case: Case) -> None:
    folder_with(tmp_path, PRELUDE + case.body)
    overrides = [part for override in case.overrides for part in ("--set", override)]
    said = psfleet(tmp_path, "train", "job.yaml", "--out", "out", *overrides)
    assert said.returncode == FAILED, said
    [line] = [line for line in said.stdout.splitlines() if line.startswith("error:")]
    assert case.expected in line
    check_report(tmp_path / "out", case)
    check_ends(tmp_path / "out", case)
    check_folder(tmp_path / "out", case)
    check_traceback(said.stdout + said.stderr, tmp_path, case)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_chief_with_all_replicas_names_the_worker_whose_replica_failed(mode: str, tmp_path: Path) -> None:
    """Its launcher ends worker 1, which need not know the reason yet."""
    case = CASES[NAN_OF_WORKER_1]
    folder_with(tmp_path, PRELUDE + case.body)
    overrides = [part for override in (*case.overrides, f"update.mode={mode}") for part in ("--set", override)]
    said = psfleet(tmp_path, "train", "job.yaml", "--out", "out", *overrides, *IN_GRAPH)
    assert said.returncode == FAILED, said
    [line] = [line for line in said.stdout.splitlines() if line.startswith("error:")]
    assert re.search(r"worker 1, step \d+: the gradient of w is NaN or infinite, expected finite numbers", line), line
    check_report(tmp_path / "out", replace(case, expected="the gradient of w is NaN"))
    check_folder(tmp_path / "out", case)


def check_report(out: Path, case: Case) -> None:
    """The report says the same."""
    report = Report.read(out)
    assert (report.status, report.exit_code, report.restarts, report.events) == ("failed", FAILED, 0, [])
    assert report.error is not None
    assert case.expected in report.error
    assert report.checkpoint is None
    assert (out / "report.html").exists()


def check_ends(out: Path, case: Case) -> None:
    """Every process ended once, with exit code 70, and one that failed says why in its last entry."""
    logs = {path.stem: entries(path) for path in (out / "logs").iterdir()}
    assert len(logs) == 2 + (case.overrides[:1] == TWO_WORKERS)
    for name, log in logs.items():
        ends = [entry for entry in log if "exit_code" in entry]
        assert [entry["exit_code"] for entry in ends] == [FAILED], (name, ends)
        assert case.expected in ends[0]["message"], name
        assert log[-1] == ends[0], name
    failed = [name for name, log in logs.items() if log[-1].get("event") == "failed"]
    assert failed, "nobody says that the run failed"
    assert all(name.startswith("worker") for name in failed)


def check_folder(out: Path, case: Case) -> None:
    """Nothing is half-written: no checkpoint before training, and a whole one of step 0 otherwise."""
    found = store.newest(out / "checkpoints")
    if case.before_training:
        assert found is None
        assert not list((out / "checkpoints").glob("*"))
    else:
        assert found is not None
        assert all(np.isfinite(value).all() for value in read_tensors(found).values())
    assert not [path for path in out.rglob("*") if "tmp" in path.name]


def check_traceback(printed: str, folder: Path, case: Case) -> None:
    """The user sees a traceback of the user's own code or none."""
    assert printed.count(TRACEBACK) == (1 if case.traceback else 0)
    for text in case.traceback:
        assert text in printed
    assert [file for file in foreign_frames(printed, folder) if "psfleet" in file or "_service" in file] == []


BLOCKS = """
import threading

def blocks(shard, shards):
    def examples():
        for number, example in enumerate(x):
            if shard == 1 and number == 20:
                threading.Event().wait()
            yield example
    return tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec([2], tf.float32))

def build():
    return psfleet.GraphProgram(loss=loss, train=blocks)
"""


def test_a_data_set_that_gives_nothing_ends_the_run_and_its_worker_is_named(tmp_path: Path) -> None:
    folder_with(tmp_path, PRELUDE + BLOCKS)
    settings = ["fleet.workers=2", "deadlines.slow_secs=0.5", f"deadlines.stall_secs={STALL_SECS}"]
    said = psfleet(
        tmp_path, "train", "job.yaml", "--out", "out", *[text for each in settings for text in ("--set", each)]
    )
    assert said.returncode == LOST_PEERS, said
    expected = f"gave up after {STALL_SECS} s waiting for the data set of worker 1 to give batch 5"
    report = Report.read(tmp_path / "out")
    assert (report.status, report.error) == ("failed", expected)
    logs = {name: entries(tmp_path / "out" / "logs" / f"{name}.log") for name in ("worker-0", "worker-1")}
    assert [entry["secs"] for entry in logs["worker-1"] if entry.get("event") == "slow_data"] == [0.5]
    ends = {name: log[-1]["time"] for name, log in logs.items()}
    noticed = next(entry["time"] for entry in logs["worker-1"] if entry.get("event") == "failed")
    assert ends["worker-0"] - noticed < END_SECS, f"{ends}, {noticed}"
