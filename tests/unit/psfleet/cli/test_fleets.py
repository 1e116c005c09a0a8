"""The commands for fleets in containers, on a platform with scripted states."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.command_line import JOB, Psfleet, commands
from support.report_samples import DONE
from support.scripted_platform import ScriptedPlatform, ended, log, member
from support.service_samples import request

from psfleet.cli import fleets, log_lines, logs
from psfleet.errors import BadJobError, UsageError
from psfleet.job.activity import Activity
from psfleet.job.job import load_job
from psfleet.launch.followers import following
from psfleet.launch.platform import Request
from psfleet.launch.results import Fetched
from psfleet.run_folder import claimed

ENTRY = {"time": 1.0, "level": "info", "message": "ps is ready"}


def use(monkeypatch: pytest.MonkeyPatch, platform: Callable[..., object]) -> None:
    """Has all commands of this file take a platform from this function."""
    for module in (fleets, logs):
        monkeypatch.setattr(module, "platform", platform)


@pytest.fixture
def psfleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Psfleet]:
    """Runs a command in a folder with a job file, on a fleet that trains."""
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    platform = ScriptedPlatform([member("ps"), member("chief")], logs={"ps-0": [*log(ENTRY), "noise"]})
    use(monkeypatch, lambda *where: platform)
    with commands(monkeypatch, capsys) as run:
        yield run


def test_the_hint_after_ctrl_c_repeats_the_whole_command(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(platform: ScriptedPlatform, request: Request) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fleets, "start", interrupt)
    said = psfleet("up", "job.yaml", "--set", "options.text=two words", "--out", "a b", "--on", "kubernetes")
    assert said.code == 130
    assert "`psfleet up job.yaml --on kubernetes --set 'options.text=two words' --out 'a b'`" in said.out
    assert "`psfleet down tiny --on kubernetes`" in said.out
    said = psfleet("up", "job.yaml", "--on", "kubernetes", "--context", "far", "--namespace", "team")
    assert "`psfleet up job.yaml --on kubernetes --context far --namespace team`" in said.out
    assert "`psfleet down tiny --on kubernetes --context far --namespace team`" in said.out
    assert "the run continues" not in said.out, "it may not have its chief yet"
    assert "`psfleet up job.yaml --on compose --fresh` starts it" in psfleet("up", "job.yaml", "--fresh").out


@pytest.mark.parametrize(
    "command",
    [("up", "job.yaml"), ("results", "tiny"), ("status", "tiny"), ("logs", "tiny"), ("scale", "tiny", "--workers", "2"),
     ("down", "tiny")],
    ids=lambda command: command[0],
)  # fmt: skip
def test_every_command_takes_a_context_and_a_namespace(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def platform(*where: str) -> None:
        raise UsageError(f"asked for {where}")

    use(monkeypatch, platform)
    said = psfleet(*command, "--on", "kubernetes", "--context", "far", "-n", "team")
    assert "asked for ('kubernetes', 'far', 'team')" in said.err
    monkeypatch.undo()


def test_a_namespace_is_refused_where_there_is_none() -> None:
    with pytest.raises(UsageError, match="--namespace team: expected only with --on kubernetes"):
        fleets.platform("compose", None, "team")


def test_the_address_of_tensorboard_is_printed_before_training(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = dataclasses.replace(member("ps"), role="tensorboard", url="http://127.0.0.1:6007")
    platform = ScriptedPlatform([member("ps"), member("chief"), board])
    use(monkeypatch, lambda *where: platform)

    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fleets, "start", lambda platform, request: None)
    monkeypatch.setattr(fleets.FleetWatcher, "run", interrupt)
    said = psfleet("up", "job.yaml")
    assert said.out.splitlines()[0] == "tensorboard: http://127.0.0.1:6007"
    assert "detached; the run continues. `psfleet up job.yaml --on compose` reattaches to it, `psfleet down" in said.out


@pytest.mark.parametrize(
    ("found", "then"),
    [
        (request().activity, "the command that started the service continues it"),
        (None, "`psfleet up` resumes from its newest checkpoint"),
        (BadJobError("of another version"), "`psfleet up` resumes from its newest checkpoint"),
    ],
    ids=["service", "training run", "of another version"],
)
def test_down_says_what_continues_a_fleet_whose_start_ended_before_its_chief(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch, found: Activity | BadJobError | None, then: str
) -> None:
    platform = ScriptedPlatform([])

    def activity(name: str) -> Activity | None:
        if isinstance(found, BadJobError):
            raise found
        return found

    monkeypatch.setattr(platform, "activity", activity)
    monkeypatch.setattr(platform, "remove", lambda name, results: True)
    use(monkeypatch, lambda *where: platform)
    assert psfleet("down", "tiny", "--on", "kubernetes").out == f"tiny: down; {then}\n"


def test_a_fleet_that_another_command_follows_is_left_to_it(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed, it would be lost to a command that still copies its results."""
    platform = ScriptedPlatform([ended("ps"), ended("chief")])
    use(monkeypatch, lambda *where: platform)
    monkeypatch.setattr(fleets, "start", lambda platform, request: None)
    monkeypatch.setattr(fleets, "collect_followed", lambda *arguments: DONE)
    with following(platform, "tiny"):
        said = psfleet("up", "job.yaml")
    assert (said.code, platform.removed) == (0, [])
    assert "another command follows fleet tiny, and removes it at its own end" in said.out
    said = psfleet("up", "job.yaml")
    assert (said.code, platform.removed, "another" in said.out) == (0, [False], False)


def test_results_of_a_fleet_are_copied_and_summed_up(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    found = [Fetched(DONE), Fetched(None, is_running=True)]

    def fetch(*arguments: Any) -> Fetched:
        seen.append(arguments[1:])
        return found.pop(0)

    monkeypatch.setattr(fleets, "fetch", fetch)
    said = psfleet("results", "job.yaml", "--on", "kubernetes")
    assert (said.code, "status:          done" in said.out) == (0, True)
    said = psfleet("results", "tiny", "--out", "copies")
    assert (said.code, "tiny: copied to copies; the fleet runs\nno report yet" in said.out) == (0, True)
    (name, job, folder, on), (_, unknown, _, _) = seen
    assert (name, job.name, folder, on, unknown) == ("tiny", "tiny", Path("runs/tiny"), "kubernetes", None)


def test_logs_are_lines_for_people_or_as_they_were_logged(psfleet: Psfleet) -> None:
    first, second = psfleet("logs", "tiny", "ps-0").out.splitlines()
    assert first.endswith("INFO    ps-0      ps is ready")
    assert second == "ps-0 | noise"
    assert psfleet("logs", "tiny", "ps-0", "--json").out.splitlines() == [json.dumps(ENTRY), "noise"]
    assert psfleet("logs", "tiny", "--json").out.splitlines()[0] == f"ps-0 | {json.dumps(ENTRY)}"


def test_logs_have_a_table_of_placement(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "have no placement, expected those of a run with device.log_placement"
        in psfleet("logs", "tiny", "--placement").err
    )
    assert psfleet("logs", "tiny", "--placement", "--follow").code == 64
    device = "/job:ps/task:0/device:CPU:0"
    lines = [("ps-0", "sum: (AddV2): /job:ps/replica:0/task:0/device:CPU:0")]
    monkeypatch.setattr(logs, "fleet_logs", lambda *arguments: iter(lines))
    assert psfleet("logs", "tiny", "--placement").out.splitlines()[1].split() == ["ps-0", device, "1", "AddV2", "1"]
    (row,) = json.loads(psfleet("logs", "tiny", "--placement", "--json").out)
    assert row == {"process": "ps-0", "device": device, "operations": {"AddV2": 1}}


def test_logs_are_cut_to_their_last_lines_or_newest_entries(psfleet: Psfleet) -> None:
    assert psfleet("logs", "tiny", "ps-0", "--tail", "1", "--json").out == "noise\n"
    assert psfleet("logs", "tiny", "--since", "5m").out == ""
    said = psfleet("logs", "tiny", "--since", "soon")
    assert said.code == 64
    assert "--since 'soon': expected a number of seconds" in said.err


@pytest.mark.parametrize(("text", "secs"), [("90", 90), ("1.5", 1.5), ("30s", 30), ("5m", 300), ("2h", 7200)])
def test_a_time_has_a_unit_or_is_in_seconds(text: str, secs: float) -> None:
    assert log_lines.seconds(text) == secs


def test_status_is_a_table_or_json(psfleet: Psfleet) -> None:
    assert len(psfleet("status", "tiny").out.splitlines()) == 3
    rows = json.loads(psfleet("status", "tiny", "--json").out)
    assert [(row["role"], row["state"]) for row in rows] == [("ps", "running"), ("chief", "running")]


def test_status_shows_local_runs_even_where_no_engine_is(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a local run, what the platform says counts."""

    def unreachable(*_: object) -> list[Any]:
        raise UsageError("no Docker engine can be reached")

    job = load_job(Path("job.yaml"))
    with claimed(Path("runs/tiny"), job, fresh=False):
        # Four processes that start, beside two in containers.
        assert len(psfleet("status", "tiny").out.splitlines()) == 1 + 4 + 2
        assert len(psfleet("status", "tiny", "--on", "compose").out.splitlines()) == 3
        monkeypatch.setattr("psfleet.launch.status.statuses", unreachable)
        rows = json.loads(psfleet("status", "--json").out)
        assert [(row["fleet"], row["role"], row["state"]) for row in rows] == [
            ("tiny", role, "starting") for role in ("ps", "chief", "worker", "spare")
        ]
        assert psfleet("status", "--on", "compose").code == 64
        assert psfleet("status", "other").code == 64
    assert psfleet("status").code == 64


def test_status_of_a_local_run_that_has_ended_says_how(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(Path("runs/tiny"), load_job(Path("job.yaml")), fresh=False) as folder:
        DONE.write(folder.path)
    use(monkeypatch, lambda *where: ScriptedPlatform([]))
    said = psfleet("status", "job.yaml")
    assert said.code == 64
    assert f"tiny does not run: runs/tiny is done at step {DONE.final_step} of {DONE.target_step}, and" in said.err
    assert "runs/tiny" not in psfleet("status", "tiny", "--on", "compose").err


@pytest.mark.parametrize("command", ["status", "logs"])
def test_a_name_that_is_nowhere_is_refused_with_all_places_that_were_looked_at(
    command: str, psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda *where: ScriptedPlatform([]))
    here = "no run lab trains in runs/, and no fleet lab stands on this machine, and in containers: no fleet lab is in"
    said = psfleet(command, "lab")
    assert (said.code, here in said.err) == (64, True), said.err
    said = psfleet(command, "lab", "--on", "compose")
    assert (said.code, "on this machine" in said.err) == (64, False), said.err


def test_status_is_shown_again_until_ctrl_c(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = iter([True])

    class Pause:
        def wait(self, secs: float) -> None:
            if next(shown, None) is None:
                raise KeyboardInterrupt

    monkeypatch.setattr(fleets, "Event", Pause)
    said = psfleet("status", "tiny", "--watch")
    assert (said.code, said.out.count("running")) == (130, 4)


def test_a_local_run_may_end_while_it_is_watched_without_an_engine(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> list[Any]:
        raise UsageError("no Docker engine can be reached")

    run = ExitStack()
    run.enter_context(claimed(Path("runs/tiny"), load_job(Path("job.yaml")), fresh=False))
    after = iter([run.close])

    class Pause:
        def wait(self, secs: float) -> None:
            end = next(after, None)
            if end is None:
                raise KeyboardInterrupt
            end()

    monkeypatch.setattr("psfleet.launch.status.statuses", unreachable)
    monkeypatch.setattr(fleets, "Event", Pause)
    said = psfleet("status", "--watch")
    assert (said.code, said.out.count("starting"), "no fleet is there" in said.out) == (130, 4, True), said


def test_the_logs_of_a_local_run_are_printed_if_it_trains_or_no_fleet_has_its_name(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed(Path("runs/tiny"), load_job(Path("job.yaml")), fresh=False) as folder:
        folder.log("worker", 0).write_text("\n".join([*log({**ENTRY, "message": "a local chief"})]) + "\n")
        assert "a local chief" in psfleet("logs", "job.yaml").out
    assert "ps is ready" in psfleet("logs", "tiny").out
    use(monkeypatch, lambda *where: ScriptedPlatform([]))
    assert "a local chief" in psfleet("logs", "tiny", "chief").out
    assert psfleet("logs", "tiny", "--on", "compose").code == 64


def test_a_task_that_a_fleet_lacks_is_not_looked_for_in_a_local_run_that_has_ended(psfleet: Psfleet) -> None:
    with claimed(Path("runs/tiny"), load_job(Path("job.yaml")), fresh=False) as folder:
        folder.log("ps", 7).write_text("of another day\n")
    said = psfleet("logs", "tiny", "ps-7")
    assert (said.code, said.out) == (64, "")
    assert "fleet tiny has no ps-7 with a log, expected one of chief, ps-0" in said.err
