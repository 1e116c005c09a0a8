"""Parts of a fleet in containers die, and what that costs: section 2 of the contract on a real Docker engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.compose_fleet import START_SECS, Fleet, fleet
from support.images import WORKER_IMAGE, docker, unique

from psfleet.errors import PROGRAM_FAILED
from psfleet.manifests.compose.render import FLEET
from psfleet.report.schema import Event, Report

STEPS = 1500
"""At the pace below far more than all that is done to the run takes."""
PACE_SECS = 0.25
EVERY_STEPS = 10
"""Between two checkpoints: what a killed ps costs at most, and the steps until its loss is seen."""
STATUS_SECS = 60.0
FAIL_SECS = 60.0
SPARE = 2
PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "mortal_program.py"

pytestmark = [pytest.mark.core, pytest.mark.timeout(900)]


@dataclass
class Bruised:
    """A run whose parts were killed one after the other, and what was seen of it."""

    fleet: Fleet
    code: int
    screen: str
    report: Report
    memory_status: str
    addresses: tuple[str, str]
    ps_step: int

    def events(self, role: str, index: int) -> list[Event]:
        """Restarts that the chief noted of one process."""
        return [
            event for event in self.report.events if (event.role, event.index, event.kind) == (role, index, "restarted")
        ]


@pytest.fixture(scope="module")
def bruised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bruised]:
    """A worker, the spare (by its memory limit), the chief, a worker from outside, and a ps at another address."""
    sections: dict[str, Any] = {
        "program": "mortal_program:build",
        "fleet": {"ps": 2, "workers": 2, "spares": 1},
        "train": {"steps": STEPS},
        "checkpoint": {"every_steps": EVERY_STEPS, "keep": 3},
        "container": {"worker": {"memory": "1Gi"}},
    }
    with fleet(tmp_path_factory.mktemp("bruised") / "job", PACE_SECS, programs=(PROGRAM,), **sections) as seen:
        seen.up()
        seen.wait_for_step(5)
        numbers = {row["index"]: _number(seen, row["address"]) for row in _table(seen)["workers"]}
        memory_status = _eat(seen, SPARE, numbers[SPARE])
        seen.kill_inside("worker", numbers[1])
        _wait_for_restarts(seen, {1: 1, SPARE: 1})
        docker("kill", seen.container("worker", numbers[1]))
        seen.kill_inside("chief")
        _wait_for_restarts(seen, {0: 1, 1: 2})
        addresses, ps_step = _move_and_kill_ps(seen, 1)
        seen.wait_for(lambda: _generation(seen) == 2, START_SECS, "the second generation to train")
        seen.hurry()
        code = seen.end()
        yield Bruised(seen, code, seen.screen.read_text(), seen.report(), memory_status, addresses, ps_step)


def _table(seen: Fleet) -> dict[str, Any]:
    """The newest table of the fleet."""
    return seen.entries("fleet")[-1]


def _number(seen: Fleet, address: str) -> int:
    """The number that compose gave to the worker of an address."""
    host = address.rpartition(":")[0]
    name = next(name for name, item in seen.containers().items() if item["Config"]["Hostname"] == host)
    return int(name.rpartition("-")[2])


def _eat(seen: Fleet, shard: int, number: int) -> str:
    """Has a worker run out of memory; what `psfleet status` says of it soon after."""
    gate = seen.folder / "gates" / f"eat-{shard}"
    gate.touch()
    name = seen.container("worker", number)
    before = seen.containers()[name]["State"]["StartedAt"]
    seen.wait_for(lambda: _died(seen.containers()[name], before), 60, "the memory limit to strike")
    gate.unlink()

    def line() -> str:
        return next(line for line in seen.run("status", seen.name).splitlines() if name in line)

    return seen.wait_for(line, STATUS_SECS, "the reason in psfleet status", done=lambda text: "out of memory" in text)


def _died(container: dict[str, Any], started: str) -> bool:
    return container["State"]["StartedAt"] != started or container["State"]["Restarting"]


def _wait_for_restarts(seen: Fleet, restarts: dict[int, int]) -> None:
    """Waits until workers are back, train, and were restarted so often."""

    def are_back() -> bool:
        rows = {row["index"]: row for row in _table(seen)["workers"]}
        return all(
            rows[index]["alive"] and rows[index]["restarts"] >= count and (rows[index]["rate"] or 0) > 0
            for index, count in restarts.items()
        )

    seen.wait_for(are_back, START_SECS, f"restarts {restarts}")


def _move_and_kill_ps(seen: Fleet, index: int) -> tuple[tuple[str, str], int]:
    """Kills a ps, and makes it restart at another address; both, and the step at which it was killed."""
    name, network = seen.container(f"ps-{index}"), seen.network(FLEET)
    before = _address(seen, name, network)
    occupant = unique("occupant")
    docker("network", "disconnect", network, name)
    docker("run", "--detach", "--name", occupant, "--network", network, "--entrypoint", "sleep", WORKER_IMAGE, "600")
    try:
        docker("network", "connect", "--alias", f"ps-{index}", network, name)
        step = seen.step()
        seen.kill_inside(f"ps-{index}")
        seen.wait_for(lambda: _address(seen, name, network) not in ("", before), 60, "the ps to be back")
        return (before, _address(seen, name, network)), step
    finally:
        docker("rm", "--force", "--volumes", occupant)


def _address(seen: Fleet, name: str, network: str) -> str:
    return str(seen.containers()[name]["NetworkSettings"]["Networks"].get(network, {}).get("IPAddress", ""))


def _generation(seen: Fleet) -> int:
    return max((entry["generation"] for entry in seen.entries("progress")), default=0)


def test_the_run_reaches_its_target_through_all_of_it(bruised: Bruised) -> None:
    assert bruised.code == 0, bruised.screen
    assert (bruised.report.status, bruised.report.final_step) == ("done", STEPS)
    assert set(bruised.fleet.left()) == {"volumes"}


def test_a_worker_that_was_killed_costs_no_step_whoever_killed_it(bruised: Bruised) -> None:
    events = bruised.events("worker", 1)
    assert [event.steps_lost for event in events] == [0, 0]
    assert {event.cause for event in events} == {"it was killed"}
    assert "worker-" in bruised.screen
    assert "was killed; it is started again" in bruised.screen


def test_a_spare_that_was_killed_costs_no_step(bruised: Bruised) -> None:
    assert [event.steps_lost for event in bruised.events("spare", SPARE)] == [0]


def test_a_chief_that_was_killed_costs_no_step(bruised: Bruised) -> None:
    assert [event.steps_lost for event in bruised.events("chief", 0)] == [0]


def test_a_ps_that_comes_back_at_another_address_costs_the_steps_since_the_checkpoint(bruised: Bruised) -> None:
    before, after = bruised.addresses
    assert before != after
    events = bruised.events("ps", 1)
    assert sum(event.steps_lost for event in events) <= 2 * EVERY_STEPS
    assert [event.cause for event in events] == ["it was killed"]
    assert bruised.report.generation == 2


def test_status_says_that_a_container_ran_out_of_memory(bruised: Bruised) -> None:
    assert "out of memory, the limit is 1 GiB" in bruised.memory_status


def test_a_program_that_raises_ends_the_run_with_70_and_is_not_tried_again(tmp_path: Path) -> None:
    sections: dict[str, Any] = {"program": "mortal_program:build", "train": {"steps": STEPS}}
    with fleet(tmp_path / "job", PACE_SECS, programs=(PROGRAM,), **sections) as seen:
        seen.up()
        seen.wait_for_step(3)
        (seen.folder / "gates" / "fail-1").touch()
        failed = time.monotonic()
        assert seen.end() == PROGRAM_FAILED, seen.screen.read_text()
        assert time.monotonic() - failed < FAIL_SECS
        screen, report = seen.screen.read_text(), seen.report()
        assert (report.status, report.exit_code) == ("failed", PROGRAM_FAILED)
        assert "the gate says that this must fail" in (report.error or "")
        assert "mortal_program.py" in screen, "the traceback"
        for index in range(2):
            log = (seen.out / "logs" / f"worker-{index}.log").read_text()
            assert log.count(f"joined as worker {index}") == 1
        assert set(seen.left()) == {"volumes"}
