"""`psfleet logs` of a run that is named by its folder, as `psfleet report` takes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.scripted_platform import ScriptedPlatform, log, member

from psfleet.cli import logs
from psfleet.job.job import load_job
from psfleet.run_folder import claimed

LINE = log({"message": "a local chief"})[0]


def run_folder(path: str, platform: str = "local") -> Path:
    """The folder of a run of the job `tiny` that has ended, with the chief's log if it trained on this machine."""
    with claimed(Path(path), load_job(Path("job.yaml")), fresh=False, platform=platform) as folder:
        if platform == "local":
            folder.log("worker", 0).write_text(LINE + "\n")
    return Path(path)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScriptedPlatform], list[str]]:
    """Has the command take this platform; returns a list of those that it asks for."""

    def replaced(found: ScriptedPlatform) -> list[str]:
        asked: list[str] = []

        def platform(name: str, *where: object) -> ScriptedPlatform:
            asked.append(name)
            return found

        monkeypatch.setattr(logs, "platform", platform)
        return asked

    return replaced


def test_the_logs_of_a_run_folder_are_those_in_it_whatever_runs_elsewhere(
    psfleet: Psfleet, use: Callable[[ScriptedPlatform], list[str]]
) -> None:
    asked = use(ScriptedPlatform([member("chief")], logs={"chief": log({"message": "of a fleet"})}))
    run_folder("elsewhere/second")
    run_folder("runs/tiny")
    said = psfleet("logs", "elsewhere/second", "chief", "--json")
    assert (said.code, said.out) == (0, LINE + "\n"), said.err
    assert psfleet("logs", "elsewhere/second/", "--tail", "0").out == ""
    assert asked == []
    said = psfleet("logs", "elsewhere/second", "ps-7")
    assert (said.code, "has no log of ps-7, expected one of chief" in said.err) == (64, True), said.err


def test_the_folder_of_a_fleet_in_containers_stands_for_the_fleet(
    psfleet: Psfleet, use: Callable[[ScriptedPlatform], list[str]]
) -> None:
    asked = use(ScriptedPlatform([member("chief")], logs={"chief": log({"message": "of a fleet"})}))
    run_folder("runs/other", "compose")
    assert "of a fleet" in psfleet("logs", "runs/other").out
    assert "of a fleet" in psfleet("logs", "runs/other", "--on", "compose").out
    assert asked == ["compose", "compose"]
    said = psfleet("logs", "runs/other", "--on", "kubernetes")
    assert (said.code, asked[2:]) == (64, [])
    assert "psfleet: runs/other: has a run on platform compose, expected one on kubernetes" in said.err


def test_a_fleet_that_is_gone_has_the_logs_that_were_copied_into_its_folder(
    psfleet: Psfleet, use: Callable[[ScriptedPlatform], list[str]]
) -> None:
    use(ScriptedPlatform([]))
    folder = run_folder("runs/other", "compose")
    said = psfleet("logs", "runs/other")
    assert (said.code, "no fleet tiny is in the script" in said.err) == (64, True), said.err
    (folder / "logs" / "worker-0.log").write_text(LINE + "\n")
    assert psfleet("logs", "runs/other", "--json").out == f"chief | {LINE}\n"
    assert psfleet("logs", "runs/other", "chief", "--on", "compose", "--follow", "--json").out == f"{LINE}\n"


def test_a_local_run_without_logs_says_so(psfleet: Psfleet) -> None:
    (run_folder("runs/tiny") / "logs" / "worker-0.log").unlink()
    said = psfleet("logs", "runs/tiny")
    assert said.code == 64
    assert "runs/tiny: has no logs, expected the folder of a run of `psfleet train`" in said.err


def test_a_local_run_has_no_logs_on_a_platform(psfleet: Psfleet) -> None:
    said = psfleet("logs", str(run_folder("runs/tiny")), "--on", "compose")
    assert (said.code, "runs/tiny: has a run on platform local, expected one on compose" in said.err) == (64, True)


def test_a_run_whose_processes_keep_their_own_logs_has_none_in_its_folder(psfleet: Psfleet) -> None:
    said = psfleet("logs", str(run_folder("runs/tiny", "hosts")))
    assert said.code == 64
    assert "runs/tiny: has a run of `psfleet task`, whose processes log to their own output" in said.err


def test_a_folder_of_the_jobs_name_that_has_no_run_is_no_run_folder(
    psfleet: Psfleet, use: Callable[[ScriptedPlatform], list[str]]
) -> None:
    use(ScriptedPlatform([member("chief")], logs={"chief": log({"message": "of a fleet"})}))
    Path("tiny").mkdir()
    assert "of a fleet" in psfleet("logs", "tiny").out
    said = psfleet("logs", "no/such")
    assert (said.code, "'no/such': expected a job file that exists, the name of a job or a run folder" in said.err) == (
        64,
        True,
    )
