"""The command line in this process, with stubs for launcher and clients: arguments, output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Psfleet

import psfleet as package
from psfleet import errors, platforms
from psfleet.addresses import Address
from psfleet.checkpoint import export as export_module
from psfleet.cli import main
from psfleet.job import store_url
from psfleet.report.schema import Report

ALL = ("train", "validate", "clusterspec", "weights", "reset", "certs")


@dataclass
class Launcher:
    """Stub for `psfleet.platforms.train`: records its arguments, and returns a report or raises."""

    exit_code: int = 0
    error: BaseException | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, job: Any, **arguments: Any) -> Report:
        self.calls.append({"job": job, **arguments})
        if self.error is not None:
            raise self.error
        status = "failed" if self.exit_code else "done"
        return Report(status=status, exit_code=self.exit_code, name="tiny", run="tiny-1", mode="sync", target_step=20)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    launcher = Launcher()
    monkeypatch.setattr(platforms, "train", launcher)
    return launcher


def test_train_passes_on_the_job_with_its_changes_and_the_folders(psfleet: Psfleet, launcher: Launcher) -> None:
    said = psfleet(
        "train", "job.yaml", "--set", "train.steps=7", "--set", "options.rate=1e-3", "--out", "here", "--fresh"
    )
    assert said.code == 0
    [call] = launcher.calls
    assert call["job"].train.steps == 7
    assert call["job"].options == {"rate": "1e-3"}, "YAML 1.1 has no such number"
    assert (call["out"], call["fresh"], call["program_folder"]) == (Path("here"), True, Path())
    assert callable(call["listener"])


def test_train_writes_into_runs_and_keeps_what_is_there_by_default(psfleet: Psfleet, launcher: Launcher) -> None:
    said = psfleet("train", "job.yaml")
    assert (launcher.calls[0]["out"], launcher.calls[0]["fresh"]) == (Path("runs/tiny"), False)
    assert "report:          runs/tiny/report.html" in said.out


@pytest.mark.parametrize("code", [0, 1, 65, 70, 75, 78, 130, 143])
def test_train_exits_as_its_run_did(psfleet: Psfleet, launcher: Launcher, code: int) -> None:
    launcher.exit_code = code
    said = psfleet("train", "job.yaml")
    assert said.code == code
    assert f"failed (exit code {code})" in said.out or code == 0


ERRORS = [
    (errors.UsageError("no such thing"), 64),
    (errors.NoCheckpointError("none is whole"), 65),
    (errors.ProgramError("it raised"), 70),
    (errors.LostPeerError("gone"), 75),
    (errors.DeadlineError("a miracle", 5.0), 75),
    (errors.BadJobError("a field is wrong"), 78),
    (errors.StoppedError(15), 143),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_a_psfleet_error_is_one_line_and_its_exit_code(
    psfleet: Psfleet, launcher: Launcher, error: errors.PsfleetError, code: int
) -> None:
    launcher.error = error
    said = psfleet("train", "job.yaml")
    assert (said.code, said.err, said.out) == (code, f"psfleet: {error}\n", "")


def test_the_programs_own_traceback_comes_before_the_line(psfleet: Psfleet, launcher: Launcher) -> None:
    launcher.error = errors.ProgramError("it raised", details="Traceback: yours\n")
    assert psfleet("train", "job.yaml").err == "Traceback: yours\npsfleet: it raised\n"


def test_a_bug_is_printed_with_its_traceback_and_exits_1(psfleet: Psfleet, launcher: Launcher) -> None:
    launcher.error = ZeroDivisionError("in psfleet")
    said = psfleet("train", "job.yaml")
    assert said.code == 1
    assert "Traceback (most recent call last)" in said.err
    assert "ZeroDivisionError: in psfleet" in said.err


def test_ctrl_c_before_the_launcher_listens_exits_130(psfleet: Psfleet, launcher: Launcher) -> None:
    launcher.error = KeyboardInterrupt()
    said = psfleet("train", "job.yaml")
    assert said.code == 130
    assert "Traceback" not in said.err


def test_ctrl_c_before_the_command_begins_exits_130(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer makes the commands for a tenth of a second, in which Click does not listen yet."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "command", interrupted)
    said = psfleet("validate", "job.yaml")
    assert (said.code, said.out, said.err) == (130, "", "")


def test_validate_prints_what_the_check_of_the_program_found(
    psfleet: Psfleet, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "check_program", lambda job, folder: f"{job.name} in {folder}")
    said = psfleet("validate", "job.yaml", "--set", "name=other")
    assert (said.code, said.out) == (0, f"job.yaml: valid, other in {Path.cwd()}\n")
    assert launcher.calls == []


def test_clusterspec_prints_json_and_nothing_else(psfleet: Psfleet) -> None:
    cluster = {"ps": ["ps-0:2222"], "worker": ["worker-0:2222", "worker-1:2222", "worker-2:2222"]}
    said = psfleet("clusterspec", "job.yaml")
    assert (said.code, json.loads(said.out), said.err) == (0, {"cluster": cluster}, "")
    said = psfleet("clusterspec", "job.yaml", "--task", "worker:1")
    assert json.loads(said.out) == {"cluster": cluster, "task": {"type": "worker", "index": 1}}


def test_weights_prints_the_file_and_the_number_of_tensors(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, Path, bool]] = []

    def export(source: Path, out: Path, best: bool, is_live: bool) -> int:
        asked.append((source, out, best))
        return 7

    monkeypatch.setattr(export_module, "export", export)
    said = psfleet("weights", "runs/tiny", "--out", "w.safetensors")
    assert (said.code, said.out) == (0, "w.safetensors: 7 tensors\n")
    psfleet("weights", "runs/tiny", "--best", "--out", "b.safetensors")
    files = Path("runs/tiny"), Path("w.safetensors"), Path("b.safetensors")
    assert asked == [(files[0], files[1], False), (files[0], files[2], True)]


class Ps:
    """Stub for `PsClient`: two ps, one of which has the run's state."""

    closed: list[Address]

    def __init__(self, address: Address, run: str, identity: object) -> None:
        self.address, self.run = address, run
        assert identity is None, "no --tls was given"

    def reset(self) -> bool:
        if self.address.host == "gone":
            raise errors.LostPeerError(f"ps at {self.address.control}: gone")
        return (self.address, self.run) == (Address("a", 1000), "tiny-1")

    def close(self) -> None:
        Ps.closed.append(self.address)


@pytest.fixture
def ps(monkeypatch: pytest.MonkeyPatch) -> type[Ps]:
    Ps.closed = []
    monkeypatch.setattr(main, "PsClient", Ps)
    return Ps


def test_reset_reports_for_each_ps_whether_it_had_state(psfleet: Psfleet, ps: type[Ps]) -> None:
    said = psfleet("reset", "tiny-1", "--ps", "a:1000", "--ps", "b:2000")
    assert (said.code, said.out) == (0, "a:1000: deleted run tiny-1\nb:2000: no state of run tiny-1\n")
    assert ps.closed == [Address("a", 1000), Address("b", 2000)]


def test_reset_reports_what_was_deleted_before_a_ps_is_unreachable(psfleet: Psfleet, ps: type[Ps]) -> None:
    said = psfleet("reset", "tiny-1", "--ps", "a:1000", "--ps", "gone:2000")
    assert (said.code, said.err) == (75, "psfleet: ps at gone:2001: gone\n")
    assert said.out == "a:1000: deleted run tiny-1\n"
    assert ps.closed == [Address("a", 1000), Address("gone", 2000)]


def test_validate_names_the_extra_of_a_store_whose_package_is_missing(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(store_url.PACKAGES, "gs", "no_such_package")
    said = psfleet("validate", "job.yaml", "--set", "checkpoint.store=gs://bucket/run")
    assert said.code == 78
    assert "pip install 'psfleet[gs]'" in said.err
    assert said.err.count("\n") == 1


def test_reset_validates_every_address_before_it_deletes_anything(psfleet: Psfleet, ps: type[Ps]) -> None:
    said = psfleet("reset", "tiny-1", "--ps", "a:1000", "--ps", "nowhere")
    assert (said.code, said.out, ps.closed) == (64, "", [])


@pytest.mark.parametrize("command", [(), *((name,) for name in ALL)], ids=["psfleet", *ALL])
def test_every_command_has_help(psfleet: Psfleet, command: tuple[str, ...]) -> None:
    said = psfleet(*command, "--help")
    assert (said.code, said.err) == (0, "")
    assert "Usage: " in said.out
    if not command:
        assert [name for name in ALL if name not in said.out] == []


@pytest.mark.parametrize("command", [(), *((name,) for name in ALL)], ids=["psfleet", *ALL])
def test_h_is_short_for_help(psfleet: Psfleet, command: tuple[str, ...]) -> None:
    said = psfleet(*command, "-h")
    assert (said.code, said.err) == (0, "")
    assert "Usage: " in said.out


def test_version_prints_the_packages_version(psfleet: Psfleet) -> None:
    said = psfleet("--version")
    assert (said.code, said.out, said.err) == (0, f"psfleet {package.__version__}\n", "")


def test_the_command_line_needs_nothing_that_the_package_does_not_name() -> None:
    """Typer brings its own copy of click: `import click` works only where something else has installed it."""
    program = "import sys; sys.modules['click'] = None; import psfleet.cli.main"
    root = Path(package.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_lists_what_is_public() -> None:
    public = [
        "Callback",
        "GraphProgram",
        "KerasProgram",
        "QueueClosedError",
        "Report",
        "Run",
        "Variables",
        "__version__",
        "attach",
        "connect",
        "part",
        "start",
        "train",
    ]
    assert dir(package) == sorted(public)
    assert [name for name in dir(package) if getattr(package, name, None) is None] == []
