"""A fleet with TLS that stands on this machine: runs and clients on it, and strangers who are refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.local_fleet import START_SECS, training
from support.standing_folder import state_of

import psfleet
from psfleet.addresses import Address
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tables, read_tensors
from psfleet.control.attendance import Attendance, FleetTask, SecuredClient
from psfleet.control.client import PsClient
from psfleet.errors import PsfleetError
from psfleet.layout import row_values
from psfleet.platforms.standing import commands
from psfleet.platforms.standing.fleet_folder import FleetFolder, find
from psfleet.platforms.standing.local import LocalFleets
from psfleet.polling import wait_until
from psfleet.service import settings
from psfleet.tls import certificates
from psfleet.tls.identity import Identity

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-m", "psfleet"]
SESSION = """\
import psfleet
import tensorflow as tf

fleet = psfleet.connect()
with tf.Graph().as_default() as graph, tf.device(fleet.device("ps", 0)):
    x = tf.constant(20) + 1
with fleet.session(graph) as session:
    print(session.run(2 * x))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetFolder]:
    """A ps that stands, with TLS, started as users do."""
    folder = tmp_path_factory.mktemp("lab")
    file = folder / "fleet.yaml"
    file.write_text("name: lab\nfleet: {ps: 1}\ntls: true\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.STATE, str(folder / "state"))
        up = subprocess.run([*COMMAND, "fleet", "up", str(file)], capture_output=True, text=True, check=False)
        assert (up.returncode, up.stdout) == (0, "lab: up, 1 ps and 0 workers\n"), up.stderr
        yield find("lab")
        commands.down("lab")
        assert not (folder / "state/fleets/lab").exists(), "with its authority"


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_a_run_with_in_graph_replication_gives_the_weights_of_one_without_tls(lab: FleetFolder, tmp_path: Path) -> None:
    assert lab.access().tls
    overrides = ["train.steps=20", "fleet.workers=3", "update.replication=in_graph"]
    found = []
    for fleet in ("lab", None):
        out = tmp_path / str(fleet)
        report = psfleet.train(ROOT / "examples/linear/job.yaml", out=out, overrides=overrides, fleet=fleet)
        assert (report.status, report.final_step, report.gradients.used) == ("done", 20, 60), report.error
        newest = store.newest(out / "checkpoints")
        assert newest is not None
        found.append(read_tensors(newest))
    secured, plain = found
    assert secured.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(secured[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_a_run_with_loaders_gives_the_weights_of_one_whose_workers_read(lab: FleetFolder, tmp_path: Path) -> None:
    """The loaders answer only who has a certificate of the fleet's authority."""
    overrides = ["train.steps=20", "fleet.workers=2", "input.from=loaders", "input.loaders=2"]
    found = []
    for fleet, more in (("lab", overrides), (None, overrides[:2])):
        out = tmp_path / str(fleet)
        report = psfleet.train(ROOT / "examples/linear/job.yaml", out=out, overrides=more, fleet=fleet)
        assert (report.status, report.final_step, report.restarts) == ("done", 20, 0), report.error
        newest = store.newest(out / "checkpoints")
        assert newest is not None
        found.append(read_tensors(newest))
    loaded, expected = found
    for name, value in expected.items():
        np.testing.assert_array_equal(loaded[name], value, err_msg=name)


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_a_run_with_a_table_gives_the_rows_of_one_without_tls(lab: FleetFolder, tmp_path: Path) -> None:
    content = {
        "name": "table",
        "program": "table_program:build",
        "fleet": {"workers": 2},
        "optimizer": {"name": "adagrad", "learning_rate": 0.1},
        "tables": {"user": {"rows": 100}},
        "train": {"steps": 20, "batch_size": 10},
    }
    found = []
    for fleet in ("lab", None):
        out = tmp_path / str(fleet)
        report = psfleet.train(content, out=out, program_folder=ROOT / "tests/support/programs", fleet=fleet)
        assert (report.status, report.final_step) == ("done", 20), report.error
        newest = store.newest(out / "checkpoints")
        assert newest is not None
        found.append(row_values(read_tables(newest)))
    secured, plain = found
    np.testing.assert_array_equal(secured["user/embeddings#ids"], plain["user/embeddings#ids"])
    np.testing.assert_allclose(secured["user/embeddings#rows"], plain["user/embeddings#rows"], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("launches_forked")
def test_a_run_and_a_client_have_certificates_of_the_fleets_authority(lab: FleetFolder, tmp_path: Path) -> None:
    assert [member.health for member in LocalFleets().members("lab")] == ["healthy"]
    report = psfleet.train(
        ROOT / "examples/linear/job.yaml", out=tmp_path, overrides=["train.steps=20", "fleet.workers=2"], fleet="lab",
        listener=lambda entry: None,
    )  # fmt: skip
    assert (report.status, report.final_step) == ("done", 20), report.error
    with psfleet.connect("lab") as fleet:
        with tf.Graph().as_default() as graph, tf.device(fleet.device("ps", 0)):
            x = v1.get_variable("x", initializer=3.0)
        with fleet.session(graph) as session:
            session.run(x.initializer)
            assert session.run(2 * x) == 6


@pytest.mark.extended
def test_a_run_that_a_handle_has_started_trains_on_the_fleet(lab: FleetFolder, tmp_path: Path) -> None:
    job = ROOT / "examples/linear/job.yaml"
    run = psfleet.start(job, out=tmp_path, overrides=["fleet.workers=2"], fleet="lab", paused=True)
    assert run.train(20).result(START_SECS) == 20
    run.stop()
    report = run.wait(START_SECS)
    assert (report.status, report.final_step) == ("stopped", 20), report.error
    assert {path.name for path in (tmp_path / "logs").glob("*-?.log")} == {"worker-0.log", "worker-1.log"}, "no ps"


@pytest.mark.parametrize("has_certificate", [False, True], ids=["without a certificate", "with one of another fleet"])
def test_strangers_are_refused(lab: FleetFolder, tmp_path: Path, has_certificate: bool) -> None:
    access = lab.access()
    ps = Address.parse(access.ps[0])

    def attends(client: SecuredClient | None) -> str:
        registration = Attendance(access.id, [FleetTask("ps", 0, ps)], f"client_{0:016x}", client)
        try:
            registration.await_tasks()
        except PsfleetError as error:
            return str(error)
        finally:
            registration.close()
        return ""

    def resets(identity: Identity | None) -> str:
        caller = PsClient(ps, "a-run", identity)
        try:
            caller.reset()
        except PsfleetError as error:
            return str(error)
        finally:
            caller.close()
        return ""

    certificates.make(tmp_path / "others")
    stranger = Identity(tmp_path / "others" / "client") if has_certificate else None
    assert "ps 0" in attends(None if stranger is None else SecuredClient(stranger))
    assert "ps at 127.0.0.1" in resets(stranger)
    own = Identity(lab.certificates / "client")
    assert (attends(SecuredClient(own)), resets(own)) == ("", "")


@pytest.mark.extended
def test_a_script_of_the_command_line_and_a_handle_on_a_run_get_in(lab: FleetFolder, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(SESSION)
    ran = subprocess.run([*COMMAND, "run", str(script), "--fleet", "lab"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "42\n"), ran.stderr
    with training(tmp_path, "--fleet", "lab", step_secs=0.1, fleet={"ps": 1, "workers": 2}) as fleet:
        fleet.wait_for_step(1)
        run = psfleet.attach(fleet.out)
        assert run.weights.get_flat().size == sum(run.weights.get()[name].size for name in run.weights.trained)
        assert run.save().is_dir()
        fleet.gates.hurry()
        fleet.wait_for(lambda: run.status != "running", START_SECS, "the end of the run")
        assert fleet.done().status == "done"


@pytest.mark.extended
def test_a_fleet_outlives_its_supervisor(lab: FleetFolder) -> None:
    before = state_of(lab)
    os.kill(before.supervisor, signal.SIGKILL)
    after = wait_until(
        lambda: state_of(lab),
        START_SECS,
        "the other supervisor to take over",
        done=lambda seen: seen.supervisor != before.supervisor,
    )
    assert [task.pid for task in after.tasks] == [task.pid for task in before.tasks]
    assert lab.is_up()
    [ps] = after.tasks
    ps.kill()
    wait_until(
        lambda: state_of(lab).tasks[0],
        START_SECS,
        "the ps to be started again",
        done=lambda task: task.restarts == ps.restarts + 1 and task.is_alive(),
    )
