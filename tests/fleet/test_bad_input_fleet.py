"""Services that do not fit where they are put: a port that is taken, another run, version, layout or job."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import yaml
from support.control_calls import configure, join, layout
from support.service_process import END_SECS, START_SECS, Service, running
from support.tiny_job import JOB, PRELUDE

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError
from psfleet.job.job import parse_job
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a resolved job of two workers and its program."""
    content = yaml.safe_load(JOB) | {"fleet": {"workers": 2}}
    (tmp_path / "job.json").write_text(parse_job(content).model_dump_json())
    (tmp_path / "program.py").write_text(PRELUDE)
    return tmp_path


@contextmanager
def worker(folder: Path, ps: Address, run: str, index: int, address: Address | None = None) -> Iterator[Service]:
    """A worker of the job in `folder`."""
    job, program = str(folder / "job.json"), str(folder)
    with running(
        "worker", folder, address, JOB=job, PROGRAM_FOLDER=program, RUN=run, PS=ps.data, INDEX=str(index)
    ) as service:
        yield service


@contextmanager
def occupied(port: int) -> Iterator[None]:
    """Somebody listens on a port of this machine."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield


def check_failure(service: Service, code: int, *expected: str) -> None:
    """It ends by itself with one entry that says why."""
    assert service.exit_code(START_SECS) == code, service.output.read_text()
    [failure] = service.failures()
    assert failure["exit_code"] == code
    assert failure["details"] == ""
    assert "\n" not in failure["message"]
    for text in expected:
        assert text in failure["message"]
    assert "Traceback" not in service.output.read_text()


def test_a_port_that_is_taken_ends_a_service_with_75_and_the_port(folder: Path) -> None:
    data, control, of_worker = free_addresses(3)
    with ExitStack() as stack:
        for port in (data.port, control.port + 1, of_worker.port + 1):
            stack.enter_context(occupied(port))
        services = [
            stack.enter_context(running("ps", folder, data)),
            stack.enter_context(running("ps", folder, control)),
            stack.enter_context(worker(folder, data, "run", 0, of_worker)),
        ]
        taken = f"TensorFlow port {data.port}", f"control port {control.port + 1}", f"control port {of_worker.port + 1}"
        for service, which in zip(services, taken, strict=True):
            check_failure(service, 75, f"{which} of 127.0.0.1 is in use, expected a free one")


def test_a_worker_of_another_run_is_refused_and_the_run_goes_on(folder: Path) -> None:
    with running("ps", folder, RUN="mine", INDEX="0") as ps, worker(folder, ps.address, "other", 0) as stranger:
        check_failure(stranger, 78, f"ps at {ps.address.control}", "run is 'other', expected 'mine'")
        with ps.client("other") as client, pytest.raises(BadJobError, match="run is 'other', expected 'mine'"):
            join(client, "stranger")
        with ps.client("mine") as client:
            assert client.describe().phase == pb.EMPTY
            client.finish(pb.Outcome(exit_code=0, message="done"))
        assert ps.exit_code(END_SECS) == 0


@pytest.mark.parametrize("index", [1, 2], ids=["a worker of the job", "a worker that joins beyond them"])
def test_a_worker_whose_program_has_another_layout_is_healthy_until_it_finds_out(folder: Path, index: int) -> None:
    """It waits while the ps hold nothing; when they hold seven weights instead of its two, it ends with 78."""
    with (
        running("ps", folder, RUN="run", INDEX="0") as ps,
        ps.serving().client("run") as client,
        worker(folder, ps.address, "run", index) as own,
    ):
        own.serving()
        wait_until(lambda: [at.index for at in client.describe().workers] == [index], START_SECS, "the worker to join")
        state = configure(client, folder / "checkpoints")
        check_failure(own, 78, f"ps 0 has layout {state.layout_digest}, expected ", " of this program")
        assert ps.exit_code(END_SECS) == 78, "the whole run is over"


def test_two_configurations_at_once_are_one(tmp_path: Path) -> None:
    """Both callers hear of the same shard; a third with another layout is refused."""
    states: list[pb.ShardState] = []
    with running("ps", tmp_path) as ps, ps.serving().client("run") as client:
        root = tmp_path / "checkpoints"
        configure(client, root)
        client.reset()
        callers = [threading.Thread(target=lambda: states.append(configure(client, root))) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(START_SECS)
        assert [(state.phase, state.generation) for state in states] == [(pb.RUNNING, 1)] * 2
        with pytest.raises(BadJobError, match="layout differs from that of generation 1"):
            configure(client, root, layout=layout(9))
        starts = [entry for entry in ps.entries() if "starts" in entry["message"]]
        assert len(starts) == 2, "one before the reset and one after it"


def test_a_service_that_is_told_nonsense_ends_with_78(tmp_path: Path) -> None:
    """See tests/unit/test_settings.py for every variable."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({**yaml.safe_load(JOB), "colour": "red"}))
    with (
        running("worker", tmp_path) as unsettled,
        running("ps", tmp_path, PARENT="1") as orphan,
        running("ps", tmp_path, JOB=str(job)) as colourful,
    ):
        check_failure(unsettled, 78, "PSFLEET_JOB, PSFLEET_PS and PSFLEET_RUN are missing, expected all three")
        check_failure(orphan, 78, "the launcher with process id 1 is gone")
        check_failure(colourful, 78, f"{job}: colour: unknown key")
