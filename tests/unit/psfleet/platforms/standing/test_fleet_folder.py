"""What commands, runs and clients find of a standing fleet in its folder; no process is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.standing_folder import folder_of, run_here

import psfleet
from psfleet.errors import BadJobError, DeadlineError, LostPeerError, UsageError
from psfleet.files import replace_file
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import Job, parse_job
from psfleet.job.sections import Device
from psfleet.launch.logs import fleet_logs
from psfleet.launch.status import standing_statuses
from psfleet.platforms.connecting import connect
from psfleet.platforms.standing import commands
from psfleet.platforms.standing.fleet_folder import FleetFolder, find
from psfleet.platforms.standing.local import LocalFleets
from psfleet.platforms.standing.placing import on_fleet
from psfleet.platforms.standing.state import FleetState
from psfleet.platforms.standing.supervisor import Supervisor, new_state
from psfleet.polling import wait_until
from psfleet.processes.identity import identity
from psfleet.service import settings

FILE = FleetFile.model_validate({"name": "lab", "fleet": {"ps": 2, "workers": 1}})
OPENED_SECS = 20.0
"""Far more than taking a free lock takes."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetFolder:
    """The folder of a fleet that is down."""
    monkeypatch.delenv(settings.FLEET, raising=False)
    folder = folder_of(FILE, tmp_path, monkeypatch)
    replace_file(folder.state_file, new_state(FILE).model_dump_json())
    return folder


@pytest.fixture
def supervised(lab: FleetFolder) -> Iterator[FleetFolder]:
    """The folder of a fleet whose supervisor runs, and whose processes are this one."""
    with lab.supervising():
        run_here(lab, known(lab))
        yield lab


@pytest.fixture
def supervised_before(lab: FleetFolder) -> FleetFolder:
    """The folder of a fleet whose supervisors were killed, and whose processes, this one, still run."""
    run_here(lab, known(lab))
    return lab


def known(folder: FleetFolder) -> FleetState:
    state = folder.state()
    assert state is not None
    return state


def job(**fields: object) -> Job:
    content = {
        "name": "tiny",
        "program": "program:build",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 2, "batch_size": 1},
    }
    return parse_job(content | fields)


def test_only_the_user_can_read_the_folder(lab: FleetFolder) -> None:
    for path in (lab.path, lab.path.parent, lab.path / "logs"):
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_fleet_that_is_not_there_is_named_with_those_that_are(lab: FleetFolder) -> None:
    for call in (lambda: find("lob"), lambda: connect("lob"), lambda: on_fleet(job(), "lob")):
        with pytest.raises(UsageError, match=r"no fleet 'lob', expected one that `psfleet fleet up` started: lab$"):
            call()


def test_a_fleet_that_is_down_serves_neither_runs_nor_clients(lab: FleetFolder) -> None:
    for call in (lab.access, lambda: connect("lab"), lambda: on_fleet(job(), "lab")):
        with pytest.raises(UsageError, match="fleet lab is down, expected it up: `psfleet fleet up FLEET"):
            call()


def test_a_client_without_a_name_needs_the_command_run(lab: FleetFolder) -> None:
    with pytest.raises(UsageError, match=r"connect\(\) without a name, expected a process of `psfleet run"):
        connect()


def test_a_fleet_of_another_version_is_refused(supervised: FleetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psfleet, "__version__", "9.9.9")
    with pytest.raises(BadJobError, match=r"fleet lab has psfleet 0\.1\.0, expected 9\.9\.9"):
        connect("lab")


def test_a_run_takes_all_ps_of_the_fleet(supervised: FleetFolder) -> None:
    placed = on_fleet(job(fleet={"ps": 1, "workers": 3}), "lab")
    assert (placed.fleet.ps, placed.fleet.workers) == (2, 3)
    assert placed.fleet.ps_addresses == known(supervised).access.ps
    with pytest.raises(UsageError, match=r"--fleet lab: fleet\.ps_addresses is set, expected one of them"):
        on_fleet(placed, "lab")
    with pytest.raises(BadJobError, match=r"job tiny on fleet lab: fleet\.ps is 2, expected 1 with optimizer lamb"):
        on_fleet(job(optimizer={"name": "lamb", "learning_rate": 0.1}), "lab")


def test_the_logs_of_a_fleet_that_is_down_are_read_from_its_folder(lab: FleetFolder) -> None:
    state = known(lab)
    for task in state.tasks:
        task.started = 1.0
        lab.log(task.role, task.index).write_text(f"{task.name} begins\n{task.name} ends\n")
    replace_file(lab.state_file, state.model_dump_json())
    assert sorted(fleet_logs(LocalFleets(), "lab", None, follow=True, tail=1)) == [
        ("ps-0", "ps 0 ends"),
        ("ps-1", "ps 1 ends"),
        ("worker-0", "worker 0 ends"),
    ]


def test_the_status_of_a_fleet_says_that_it_is_down_or_what_runs(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psfleet.platforms.standing.local.problem", lambda port, tls: "")
    rows = standing_statuses(LocalFleets(), "lab")
    assert [(row.role, row.index, row.state) for row in rows] == [
        ("ps", 0, "down"),
        ("ps", 1, "down"),
        ("worker", 0, "down"),
    ]
    assert rows[0].last_event == "`psfleet fleet up` starts it"
    assert standing_statuses(LocalFleets(), "other") == []
    with lab.supervising():
        state = known(lab)
        state.tasks[0].state = "running"
        state.tasks[1].state, state.tasks[1].cause, state.tasks[1].restarts = "restarting", "killed by SIGKILL", 2
        replace_file(lab.state_file, state.model_dump_json())
        ps, other, _ = standing_statuses(LocalFleets(), None)
        assert (ps.state, ps.health) == ("running", "healthy")
        assert (other.state, other.health, other.restarts, other.last_event) == (
            "restarting",
            "",
            2,
            "killed by SIGKILL",
        )


def test_a_supervisor_adopts_what_runs_and_starts_a_fleet_anew_if_nothing_does(lab: FleetFolder) -> None:
    before = known(lab)
    assert Supervisor(lab, FILE).state.access.id != before.access.id
    before.tasks[1].state, before.tasks[1].pid = "running", os.getpid()
    before.tasks[1].identity = identity(os.getpid())
    replace_file(lab.state_file, before.model_dump_json())
    adopted = Supervisor(lab, FILE)
    assert adopted.state.access == before.access
    assert [task.has_ended() for task in adopted.tasks] == [True, False, True]


def test_a_process_of_a_fleet_gets_its_fleet_and_nothing_of_a_run(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.RUN, "a-run")
    monkeypatch.setenv(settings.TF_CONFIG, json.dumps({"cluster": {"ps": ["h:1"]}}))
    supervisor = Supervisor(lab, FILE)
    environment = {**os.environ, **supervisor.tasks[2]._environment}
    found = settings.read(environment)
    assert (found.run, found.job, found.fleet, found.ps) == ("", None, supervisor.state.access, ())
    assert (found.index, found.address.data) == (0, supervisor.state.access.workers[0])
    assert found.device == FILE.device


def test_a_fleet_with_other_settings_is_not_replaced(supervised: FleetFolder) -> None:
    with pytest.raises(UsageError, match="fleet lab is up with other settings, expected the same, or `psfleet fleet d"):
        commands.up(FILE.model_copy(update={"device": Device(intra_op_threads=1)}))


def test_taking_down_a_fleet_that_is_down_deletes_its_folder(lab: FleetFolder) -> None:
    commands.down("lab")
    assert not lab.path.exists()
    with pytest.raises(UsageError, match=r"no fleet 'lab', expected one that .*: there is none"):
        commands.down("lab")


def test_the_lock_passes_to_the_supervisor_that_waits(lab: FleetFolder) -> None:
    taken = threading.Event()

    def wait() -> None:
        with lab.supervising():
            taken.set()

    with lab.supervising():
        threading.Thread(target=wait, daemon=True).start()
        assert lab.is_up()
        with pytest.raises(DeadlineError, match="the supervisor of fleet lab to end"), lab.without_supervisor(0.0):
            pass
        assert not taken.is_set()
    assert taken.wait(OPENED_SECS)


def test_a_relative_state_folder_is_the_same_for_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor has another working directory."""
    monkeypatch.chdir(tmp_path)
    for name, value, expected in ((settings.STATE, "state", "state"), ("XDG_STATE_HOME", "xdg", "xdg/psfleet")):
        assert settings.state_folder({name: value}) == tmp_path / expected


def test_orphans_of_a_fleet_with_other_settings_are_not_taken_for_the_new_one(
    supervised_before: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(folder: FleetFolder) -> subprocess.Popen[bytes]:
        raise AssertionError("a supervisor is started, which adopts them")

    monkeypatch.setattr(commands, "start_supervisor", start)
    larger = FILE.model_copy(update={"fleet": FILE.fleet.model_copy(update={"ps": 3})})
    with pytest.raises(UsageError, match="fleet lab is up with other settings, expected the same, or `psfleet fleet d"):
        commands.up(larger)
    assert supervised_before.file() == FILE


def test_a_supervisor_that_cannot_start_is_not_waited_for(lab: FleetFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(folder: FleetFolder) -> subprocess.Popen[bytes]:
        folder.supervisor_log.write_text("Traceback\nLostPeerError: no 9 pairs of free ports\n")
        return subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(1)"])

    monkeypatch.setattr(commands, "start_supervisor", start)
    began = time.monotonic()
    with pytest.raises(LostPeerError, match=r"supervisor of fleet lab ended at its start: LostPeerError: no 9 pairs"):
        commands.up(FILE)
    assert time.monotonic() - began < OPENED_SECS
    assert lab.supervisor_log.exists()
    assert (lab.file(), lab.state(), lab.is_up()) == (None, None, False)
    commands.down("lab")
    assert not lab.path.exists()


def test_a_fleet_that_another_command_took_down_meanwhile_is_named(
    lab: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found_and_taken_down(name: str) -> FleetFolder:
        folder = find(name)
        shutil.rmtree(folder.path)
        return folder

    monkeypatch.setattr(commands, "find", found_and_taken_down)
    with pytest.raises(UsageError, match="no fleet 'lab', expected one that"):
        commands.down("lab")


def test_a_supervisor_of_a_deleted_folder_does_not_work_for_a_new_one(lab: FleetFolder) -> None:
    """Without that, a second supervisor would start all processes of a fleet again."""
    opened, released = threading.Event(), threading.Event()
    works: list[bool] = []

    def wait() -> None:
        opened.set()
        with lab.supervising() as is_wanted:
            works.append(is_wanted)
        released.set()

    with lab.supervising():
        threading.Thread(target=wait, daemon=True).start()
        assert opened.wait(OPENED_SECS)
        wait_until(lambda: len(open_locks(lab)) > 1, OPENED_SECS, "the other supervisor to wait")
        lab.remove()
        lab.make(FILE)
    assert released.wait(OPENED_SECS)
    assert works == [False]
    with lab.supervising() as is_wanted:
        assert is_wanted


def open_locks(folder: FleetFolder) -> list[str]:
    """The descriptors of this process with the supervisor's lock file."""
    paths = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return [path for path in paths if path == str(folder.path / "supervisor.lock")]
