"""What the command line refuses before any process starts: one line, the documented exit code, nothing written."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import JOB, Psfleet, commands

TRAIN = ("train", "job.yaml", "--out", "out")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a valid job file."""
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def psfleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Psfleet]:
    """Runs a command in this process."""
    with commands(monkeypatch, capsys) as run:
        yield run


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder; the bytes of files."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def check(folder: Path, psfleet: Psfleet, arguments: tuple[str, ...], code: int, *expected: str) -> None:
    """Runs a command that must be refused in one line, and must leave everything as it was."""
    before = contents(folder)
    said = psfleet(*arguments)
    assert said.code == code, said
    for text in expected:
        assert text in said.err, said
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if line.startswith("psfleet: ")]
    assert lines == said.err.splitlines() != [], "one line, and it says who speaks"
    assert len(lines) == 1
    assert contents(folder) == before, "something was written"


BAD_JOBS: list[tuple[str, int, tuple[str, ...]]] = [
    ("name: [a", 78, ("job file job.yaml is not YAML", "line 1")),
    ("- a\n- b\n", 78, ("job file job.yaml holds list, expected a mapping of fields",)),
    ("", 78, ("job file job.yaml holds NoneType, expected a mapping",)),
    (JOB + "colour: red\n", 78, ("job.yaml: colour: unknown key",)),
    (JOB.replace("name: tiny\n", ""), 78, ("job.yaml: name: missing, expected a value",)),
]


@pytest.mark.parametrize(("text", "code", "expected"), BAD_JOBS, ids=[case[2][0] for case in BAD_JOBS])
def test_a_bad_job_file_is_refused(
    folder: Path, psfleet: Psfleet, text: str, code: int, expected: tuple[str, ...]
) -> None:
    (folder / "job.yaml").write_text(text)
    check(folder, psfleet, TRAIN, code, *expected)


BAD_FIELDS: list[tuple[str, int, tuple[str, ...]]] = [
    ("flet.ps=1", 78, ("flet: unknown key",)),
    ("fleet.pss=1", 78, ("fleet.pss: unknown key",)),
    ("fleet.ps=-1", 78, ("fleet.ps is -1", "greater than or equal to 1")),
    ("fleet.workers=0", 78, ("fleet.workers is 0", "greater than or equal to 1")),
    ("fleet.spares=two", 78, ("fleet.spares is 'two'", "valid integer")),
    ("fleet.max_workers=2", 78, ("max_workers is 2", "at least workers + spares = 3")),
    ("fleet.ps_addresses=[nowhere]", 78, ("ps_addresses has 'nowhere'", "host:port")),
    ('fleet.ps_addresses=["a:1","b:1"]', 78, ("ps_addresses has 2 entries", "as many as ps = 1")),
    ("update.quorum=4", 78, ("update.quorum is 4", "at most fleet.workers + fleet.spares = 3")),
    ("update.mode=lockstep", 78, ("update.mode is 'lockstep'", "'sync', 'averaging', 'ssp' or 'async'")),
    ("update.warmup_steps=3", 78, ("update.warmup_steps is 3", "expected 0 in mode sync")),
    ("program=program.build", 78, ("program is 'program.build'", "match pattern")),
    ("name=Le Net", 78, ("name is 'Le Net'", "match pattern")),
    ("options=3", 78, ("options is 3", "a mapping")),
    ("optimizer.name=nadam", 78, ("optimizer", "'nadam'", "'sgd'")),
    ("optimizer.learning_rate=-1", 78, ("optimizer.learning_rate is -1", "greater than 0")),
    ("optimizer.learning_rate=.nan", 78, ("optimizer.learning_rate is nan", "finite number")),
    ("train.steps=1.5", 78, ("train.steps is 1.5", "valid integer")),
    ("train.batch_size=0", 78, ("train.batch_size is 0", "greater than or equal to 1")),
    ("checkpoint.keep=0", 78, ("checkpoint.keep is 0", "greater than or equal to 1")),
    ("deadlines.step_secs=0", 78, ("deadlines.step_secs is 0", "greater than 0")),
    ("device.gpu_memory_fraction=2", 78, ("device.gpu_memory_fraction is 2", "less than or equal to 1")),
    ("fleet", 64, ("--set 'fleet'", "expected key=value")),
    ("=3", 64, ("--set '=3'", "expected key=value")),
    ("train.steps.more=3", 64, ("--set 'train.steps.more=3'", "steps is not a section")),
    ("train.steps=[3", 64, ("--set 'train.steps=[3'", "not YAML")),
]


@pytest.mark.parametrize(("override", "code", "expected"), BAD_FIELDS, ids=[case[0] for case in BAD_FIELDS])
def test_a_bad_field_is_refused(
    folder: Path, psfleet: Psfleet, override: str, code: int, expected: tuple[str, ...]
) -> None:
    check(folder, psfleet, (*TRAIN, "--set", override), code, *expected)


BAD_COMMANDS: list[tuple[str, int, tuple[str, ...]]] = [
    ("train none.yaml", 64, ("job file none.yaml", "No such file")),
    ("train folder", 64, ("job file folder", "Is a directory")),
    ("train job.yaml --out file", 64, ("--out file", "expected a folder that can be written")),
    ("train job.yaml --out file/below", 64, ("--out file/below", "expected a folder that can be written")),
    ("train job.yaml --out /proc/psfleet", 64, ("--out /proc/psfleet", "expected a folder that can be written")),
    ("validate none.yaml", 64, ("job file none.yaml", "No such file")),
    ("clusterspec job.yaml --task worker:3", 64, ("--task 'worker:3'", "worker:0 to worker:2")),
    ("clusterspec job.yaml --task ps", 64, ("--task 'ps'", "expected one of ps:0 to ps:0")),
    ("clusterspec job.yaml --task ps:-1", 64, ("--task 'ps:-1'", "expected one of ps:0 to ps:0")),
    ("clusterspec job.yaml --task chief:0", 64, ("--task 'chief:0'", "expected one of ps:0")),
    ("weights folder", 64, ("expected either --out FILE", "or --set FILE")),
    ("weights folder --out w.npz", 64, ("--out w.npz", ".safetensors, .weights.h5 or .keras")),
    ("weights folder --out no/w.safetensors", 64, ("--out no/w.safetensors", "a folder that exists")),
    ("weights none --out w.safetensors", 64, ("none: no checkpoint there",)),
    ("weights folder --out w.safetensors", 64, ("folder: no checkpoint there",)),
    ("reset run --ps nowhere", 64, ("--ps", "'nowhere'", "host:port")),
    ("reset run --ps 127.0.0.1:65532", 64, ("--ps", "'127.0.0.1:65532'", "below 65532")),
    ("reset run --ps 127.0.0.1:1", 75, ("ps at 127.0.0.1:2", "Connection refused")),
]


@pytest.mark.parametrize(("command", "code", "expected"), BAD_COMMANDS, ids=[case[0] for case in BAD_COMMANDS])
def test_a_bad_command_is_refused(
    folder: Path, psfleet: Psfleet, command: str, code: int, expected: tuple[str, ...]
) -> None:
    (folder / "file").touch()
    (folder / "folder").mkdir()
    check(folder, psfleet, tuple(command.split()), code, *expected)


MISUSE = ["launch job.yaml", "train", "train job.yaml --outt x", "train a.yaml b.yaml", "weights", "reset run"]


@pytest.mark.parametrize("command", MISUSE)
def test_a_command_that_does_not_exist_or_lacks_something_is_told_how_it_is_used(
    folder: Path, psfleet: Psfleet, command: str
) -> None:
    before = contents(folder)
    said = psfleet(*command.split())
    assert said.code == 64, said
    assert "Usage: " in said.err
    assert "Traceback" not in said.err
    assert contents(folder) == before


def test_a_folder_that_another_run_uses_is_refused(folder: Path, psfleet: Psfleet) -> None:
    (folder / "out" / "checkpoints").mkdir(parents=True)
    (folder / "out" / "report.json").write_text("of the run before")
    (folder / "out" / ".run").write_text('{"name": "tiny", "platform": "local"}')
    with (folder / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for fresh in ((), ("--fresh",)):
            expected = ("--out out", "another run is using it", "expected another folder")
            check(folder, psfleet, (*TRAIN, *fresh), 64, *expected)
