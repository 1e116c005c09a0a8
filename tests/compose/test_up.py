"""`psfleet up` on a real Docker engine: one run that is watched, left, grown, ended, and taken up again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import port_probe
from support.compose_fleet import START_SECS, Fleet, fleet
from support.images import docker

from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.store import newest, verify
from psfleet.errors import USAGE
from psfleet.manifests.compose.render import FLEET
from psfleet.report.schema import Report
from psfleet.service.logs import parse_line

STEPS = 1000
"""At the pace below far more than all that is done to the run takes."""
PACE_SECS = 0.25
pytestmark = [pytest.mark.core, pytest.mark.timeout(600)]


@dataclass
class Run:
    """What was seen of one run, from its start to the second `psfleet up` after its end."""

    fleet: Fleet
    containers: dict[str, dict[str, Any]]
    status: str
    ps_log: str
    log: str
    inside: list[int]
    outside: list[int]
    outside_if_ordinary: list[int]
    left_code: int
    left_screen: str
    grown: dict[str, dict[str, Any]]
    steps_while_alone: tuple[int, int]
    code: int
    screen: str
    report: Report
    logs: dict[str, int]
    left_after: dict[str, list[str]]
    again_code: int
    again_screen: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that goes through all of it, for the tests below to judge."""
    sections = {"train": {"steps": STEPS}, "checkpoint": {"every_steps": 200}}
    with fleet(tmp_path_factory.mktemp("up") / "job", PACE_SECS, **sections) as seen:
        seen.up()
        seen.wait_for_step(1)
        containers = seen.containers()
        inside, outside, outside_if_ordinary = _probes(seen, containers)
        seen.wait_for(lambda: seen.entries("fleet")[-1]["workers"][-1]["rate"], 20, "rates in the chief's table")
        status, ps_log, log = (seen.run(*words) for words in (("status", seen.name), *_log_commands(seen)))
        left_code = seen.leave()
        left_screen, before = seen.screen.read_text(), seen.step()
        grown = _grow(seen)
        alone = (before, seen.step())
        seen.up()
        seen.hurry()
        code = seen.end()
        screen, report, left_after = seen.screen.read_text(), seen.report(), seen.left()
        logs = {path.name: path.stat().st_size for path in (seen.out / "logs").iterdir()}
        seen.up()
        again_code = seen.end()
        yield Run(
            seen, containers, status, ps_log, log, inside, outside, outside_if_ordinary, left_code,
            left_screen, grown, alone, code, screen, report, logs, left_after, again_code, seen.screen.read_text(),
        )  # fmt: skip


def _log_commands(seen: Fleet) -> tuple[tuple[str, ...], ...]:
    return ("logs", str(seen.job), "ps-0", "--json"), ("logs", seen.name, "--json")


def _probes(seen: Fleet, containers: dict[str, dict[str, Any]]) -> tuple[list[int], list[int], list[int]]:
    """Which ports of a ps answer: to a container of the fleet's network, to the engine's machine, and to the machine
    while the ps is also on an internal network on which the machine has an address."""
    ps = seen.container("ps-0")
    address = containers[ps]["NetworkSettings"]["Networks"][seen.network(FLEET)]["IPAddress"]
    inside, outside = port_probe.answering_in(seen.network(FLEET), address), port_probe.answering_on_machine(address)
    with port_probe.on_ordinary_network(ps) as ordinary_address:
        return inside, outside, port_probe.answering_on_machine(ordinary_address)


def _grow(seen: Fleet) -> dict[str, dict[str, Any]]:
    """Adds a worker by hand, and waits until it takes part."""
    file = seen.folder / "compose.yaml"
    seen.run("render", "compose", str(seen.job), "--out", str(file))
    docker("compose", "-f", str(file), "up", "-d", "--scale", "worker=2")
    seen.wait_for(
        lambda: any(row["index"] == 2 and row["step"] > 0 for row in seen.entries("fleet")[-1]["workers"]),
        90,
        "worker 2 to take part",
    )
    return seen.containers()


def test_the_run_is_done_and_its_report_is_as_on_a_laptop(run: Run) -> None:
    assert run.code == 0, run.screen
    assert (run.report.status, run.report.final_step, run.report.target_step) == ("done", STEPS, STEPS)
    counts = run.report.gradients
    assert counts.pushed == counts.used + counts.dropped
    assert run.report.eval["loss"] >= 0
    assert (run.fleet.out / "report.html").exists()
    assert any((run.fleet.out / "tensorboard").iterdir())


def test_the_checkpoint_of_the_report_is_where_it_says_and_whole(run: Run) -> None:
    assert run.report.checkpoint is not None
    path = Path(run.report.checkpoint.path)
    assert path.is_relative_to(run.fleet.out)
    verify(read_manifest(path))
    found = newest(run.fleet.out / "checkpoints")
    assert found is not None
    assert (found.folder, found.step) == (path, STEPS)


def test_each_process_has_its_log_beside_the_report(run: Run) -> None:
    assert set(run.logs) == {"ps-0.log", "worker-0.log", "worker-1.log", "worker-2.log"}
    assert all(run.logs.values()), "none is empty"


def test_only_the_volume_is_left_of_a_run_that_ended(run: Run) -> None:
    assert set(run.left_after) == {"volumes"}


def test_ctrl_c_leaves_the_run_alone_and_says_how_to_come_back(run: Run) -> None:
    assert run.left_code == 128 + signal.SIGINT
    assert f"psfleet up {run.fleet.job} --on compose" in run.left_screen
    assert "Traceback" not in run.left_screen
    before, after = run.steps_while_alone
    assert after > before
    assert {name: (item["Id"], item["State"]["Pid"]) for name, item in run.containers.items()}.items() <= {
        name: (item["Id"], item["State"]["Pid"]) for name, item in run.grown.items()
    }.items(), "coming and going, and growing by hand, restart nothing"


def test_coming_back_shows_the_progress_again(run: Run) -> None:
    assert f"of {STEPS}" in run.screen
    assert "status:          done" in run.screen


def test_a_worker_that_was_added_by_hand_in_the_middle_takes_part(run: Run) -> None:
    assert set(run.report.gradients.per_worker) == {"0", "1", "2"}
    assert run.report.gradients.per_worker["2"].used > 0


def test_a_second_up_of_a_finished_run_says_done(run: Run) -> None:
    assert run.again_code == 0, run.again_screen
    assert "status:          done" in run.again_screen


def test_status_shows_every_container(run: Run) -> None:
    rows = [line.split() for line in run.status.splitlines()[1:]]
    assert [(row[1], row[2], row[3]) for row in rows] == [
        ("ps", "0", "running"),
        ("chief", "0", "running"),
        ("worker", "1", "running"),
        ("tensorboard", "-", "running"),
    ]
    for row in rows[:3]:
        assert int(row[5]) > 0, "a step"
        assert float(row[6].replace(",", "")) > 0, "a rate"


def test_logs_are_those_of_one_task_or_of_all_with_their_names(run: Run) -> None:
    assert '"message": "ps is ready at ps-0:2222"' in run.ps_log
    assert {line.partition(" | ")[0] for line in run.log.splitlines()} == {"ps-0", "chief", "worker-1"}


def test_no_port_of_the_fleet_answers_a_user_of_the_machine(run: Run) -> None:
    assert run.inside == port_probe.PORTS, "the ps answers at this address"
    assert run.outside_if_ordinary == port_probe.PORTS, "the probe sees what answers"
    assert run.outside == []


def test_published_ports_are_on_loopback_only(run: Run) -> None:
    published = {
        (name, binding["HostIp"])
        for name, item in run.containers.items()
        for bindings in item["NetworkSettings"]["Ports"].values()
        for binding in bindings or ()
    }
    assert published == {(run.fleet.container("tensorboard"), "127.0.0.1")}


def test_the_engine_gives_no_container_more_than_it_must_have(run: Run) -> None:
    for name, item in run.containers.items():
        host = item["HostConfig"]
        assert host["CapDrop"] == ["ALL"], name
        assert not host["CapAdd"], name
        assert not host["Privileged"], name
        assert "no-new-privileges:true" in host["SecurityOpt"], name
        assert host["ReadonlyRootfs"], name
        assert host["Memory"] == host["MemorySwap"] > 0, name
        assert host["PidsLimit"] > 0, name
        assert item["Config"]["User"].split(":")[0] not in ("", "0", "root"), name
        assert not any("docker.sock" in mount["Source"] for mount in item["Mounts"]), name
        assert all(not mount["RW"] for mount in item["Mounts"] if mount["Type"] == "bind"), name


def test_a_run_that_was_grown_shrunk_and_taken_down_goes_on_from_where_it_was(tmp_path: Path) -> None:
    with fleet(tmp_path / "resumed", PACE_SECS, train={"steps": 400}) as resumed:
        resumed.up()
        resumed.wait_for_step(10)
        resumed.leave()
        _grow_and_shrink(resumed)
        assert "resumes from its newest checkpoint" in resumed.run("down", resumed.name)
        assert set(resumed.left()) == {"volumes"}
        resumed.hurry()
        resumed.up()
        assert resumed.end(START_SECS) == 0, resumed.screen.read_text()
        entries = map(parse_line, (resumed.out / "logs" / "worker-0.log").read_text().splitlines())
        steps = [entry["step"] for entry in entries if entry is not None and entry.get("event") == "progress"]
        assert min(steps) > 10, "the chief did not save before it ended"
        resumed.run("down", resumed.name, "--results")
        assert resumed.left() == {}


def test_results_are_fetched_while_the_fleet_trains_and_after_it_was_taken_down(tmp_path: Path) -> None:
    with fleet(tmp_path / "fetched", PACE_SECS, train={"steps": 400}) as one:
        one.up()
        one.wait_for_step(5)
        one.leave()
        assert "the fleet runs\nno report yet" in one.run("results", str(one.job), "--out", str(one.out))
        assert (one.out / "logs" / "worker-0.log").stat().st_size
        one.run("down", one.name)
        assert set(one.left()) == {"volumes"}
        assert "status:          stopped (exit code 143)" in one.run("results", one.name, "--out", str(one.out))
        assert set(one.left()) == {"volumes"}
        report, found = one.report(), newest(one.out / "checkpoints")
        assert found is not None
        assert report.checkpoint is not None
        assert (report.checkpoint.path, report.final_step) == (str(found.folder), found.step)
        assert found.step >= 5
        assert (one.out / "logs" / "worker-0.log").stat().st_size, "logs of containers that are gone stay"
        one.run("down", one.name, "--results")
        said = one.run("results", str(one.job), "--out", str(one.out), code=USAGE)
        assert f"no fleet {one.name} is on the Docker engine, and no results of an earlier one" in said
        assert one.left() == {}


def _grow_and_shrink(seen: Fleet) -> None:
    """Within the bounds of the job: two gradients make a step, and there are four indices."""
    for outside in ("1", "5"):
        assert "expected 2 to 4" in seen.run("scale", seen.name, "--workers", outside, code=USAGE)
    before = set(seen.containers())
    seen.run("scale", seen.name, "--workers", "3")
    assert set(seen.containers()) - before == {seen.container("worker", 2)}
    seen.run("scale", seen.name, "--workers", "2")
    assert set(seen.containers()) == before
