"""Which process of a fleet the command line and TF_CONFIG describe together, and what its service is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_job import job

from psfleet.addresses import Address, TfConfig, parse_tf_config
from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job
from psfleet.launch import task
from psfleet.launch.task import HostTask, Wanted, environment, task_of
from psfleet.service import settings

FLEET = job(fleet={"ps": 2, "workers": 2, "spares": 1})
PS = "a:2222,b:3333"
ADDRESSES = (Address("a", 2222), Address("b", 3333))


def config(kind: str, index: int, **cluster: list[str]) -> TfConfig:
    members = cluster or {"ps": PS.split(","), "worker": ["c:1000", "d:1000"]}
    return parse_tf_config(json.dumps({"cluster": members, "task": {"type": kind, "index": index}}))


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this machine reach every ps from the address 10.0.0.9."""
    monkeypatch.setattr(task, "own_host", lambda hosts: "10.0.0.9")


def test_a_ps_is_at_its_entry() -> None:
    assert task_of(FLEET, Wanted("ps", 1, PS), None) == HostTask("ps", 1, ADDRESSES, ADDRESSES[1])


@pytest.mark.parametrize(("index", "port"), [(0, 2300), (1, 2305), (5, 2325)])
@pytest.mark.usefixtures("at_home")
def test_workers_of_one_host_have_ports_of_their_own(index: int, port: int) -> None:
    """The last index is that of a worker beyond the job's three: `fleet.max_workers` is 6 by default."""
    found = task_of(FLEET, Wanted("worker", index, PS), None)
    assert found == HostTask("worker", index, ADDRESSES, Address("10.0.0.9", port))
    assert found.is_chief == (index == 0)


def test_a_worker_may_name_its_address() -> None:
    assert task_of(FLEET, Wanted("worker", 1, PS, "c:4000"), None).address == Address("c", 4000)


@pytest.mark.parametrize(
    ("kind", "index", "expected"),
    [
        ("ps", 1, HostTask("ps", 1, ADDRESSES, ADDRESSES[1])),
        ("worker", 1, HostTask("worker", 1, ADDRESSES, Address("d", 1000))),
    ],
)
def test_tf_config_alone_is_enough(kind: str, index: int, expected: HostTask) -> None:
    assert task_of(FLEET, Wanted(), config(kind, index)) == expected
    again = Wanted(expected.role, expected.index, PS)
    assert task_of(FLEET, again, config(kind, index)) == expected, "the same on the command line"


def test_a_cluster_alone_leaves_the_task_to_the_command_line() -> None:
    cluster = parse_tf_config(json.dumps({"cluster": {"ps": PS.split(",")}}))
    assert task_of(FLEET, Wanted("ps", 0), cluster) == HostTask("ps", 0, ADDRESSES, ADDRESSES[0])


def test_the_tf_config_of_a_tool_without_ps_says_nothing() -> None:
    other = config("worker", 0, worker=["x:1", "y:1"])
    assert task_of(FLEET, Wanted("ps", 1, PS), other) == HostTask("ps", 1, ADDRESSES, ADDRESSES[1])


def test_the_job_may_name_the_ps() -> None:
    named = job(fleet={"ps": 2, "workers": 2, "ps_addresses": PS.split(",")})
    assert task_of(named, Wanted("ps", 0), None) == HostTask("ps", 0, ADDRESSES, ADDRESSES[0])


@pytest.mark.parametrize(
    ("wanted", "known", "error", "message"),
    [
        (Wanted("ps", 0), None, UsageError, "--ps is missing, expected HOST:PORT of each ps"),
        (Wanted(index=0, ps=PS), None, UsageError, "--role is missing"),
        (Wanted("ps", ps=PS), None, UsageError, "--index is missing"),
        (Wanted("chief", 0, PS), None, UsageError, "--role is 'chief', expected ps or worker"),
        (Wanted("ps", 2, PS), None, UsageError, "ps 2: expected an index from 0 to 1"),
        (Wanted("ps", -1, PS), None, UsageError, "ps -1: expected an index from 0 to 1"),
        (Wanted("worker", 6, PS), None, UsageError, "worker 6: expected an index from 0 to 5"),
        (Wanted("ps", 0, "a:2222"), None, BadJobError, "the fleet has 1 ps addresses, expected fleet.ps = 2"),
        (Wanted("ps", 0, "a:2222,b"), None, UsageError, "--ps: address 'b': expected host:port"),
        (Wanted("ps", 0, "a:2222,a:2222"), None, UsageError, "ps 0 at a:2222 and ps 1 at a:2222: expected ports"),
        (Wanted("ps", 0, "a:2222,a:2223"), None, UsageError, "expected ports at least 5 apart"),
        (Wanted("worker", 0, PS, "b:3334"), None, UsageError, "ps 1 at b:3333 and worker 0 at b:3334"),
        (Wanted("worker", 0, PS, "b"), None, UsageError, "--address: address 'b': expected host:port"),
        (Wanted("ps", 0, PS, "b:1"), None, UsageError, "--address: the address of a ps is its entry of --ps"),
        (Wanted("ps"), config("worker", 1), UsageError, "--role is ps, but TF_CONFIG has worker"),
        (Wanted(index=2), config("worker", 1), UsageError, "--index is 2, but TF_CONFIG has 1"),
        (Wanted(ps="a:1,b:1"), config("worker", 1), UsageError, "--ps is a:1,b:1, but TF_CONFIG has other ps"),
        (Wanted(), config("ps", 2), UsageError, "ps 2: expected an index from 0 to 1"),
        (Wanted(), config("ps", 0, ps=["a:1"]), BadJobError, "the fleet has 1 ps addresses"),
    ],
)
@pytest.mark.usefixtures("at_home")
def test_what_does_not_describe_a_process_of_the_fleet_is_refused(
    wanted: Wanted, known: TfConfig | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        task_of(FLEET, wanted, known)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "tls", "distance"), [("a", False, 5), ("a", True, 5), ("127.0.0.1", False, 2), ("127.0.0.1", True, 4)]
)
def test_a_process_has_the_ports_after_its_own(host: str, tls: bool, distance: int) -> None:
    fleet = job(tls=tls)
    assert task_of(fleet, Wanted("worker", 0, f"{host}:2222", f"{host}:{2222 + distance}"), None).index == 0
    with pytest.raises(UsageError, match=f"expected ports at least {distance} apart"):
        task_of(fleet, Wanted("worker", 0, f"{host}:2222", f"{host}:{2222 + distance - 1}"), None)


def test_with_tls_each_ps_has_a_host_of_its_own() -> None:
    one_host = Wanted("ps", 0, "a:2222,a:3333")
    assert task_of(FLEET, one_host, None).index == 0
    with pytest.raises(UsageError, match=r"^a has several ps, expected one on each host with tls: true"):
        task_of(FLEET.model_copy(update={"tls": True}), one_host, None)


@pytest.mark.parametrize("is_text", [False, True])
def test_a_service_reads_what_it_is_given(tmp_path: Path, is_text: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of psfleet's variables is in the environment of the command."""
    for name in (settings.INDEX, settings.COMPLETION_INDEX, settings.METRICS_PORT):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv(settings.TLS, "/tls")
    found = HostTask("worker", 1, ADDRESSES, Address("c", 4000))
    variables = environment(FLEET, found, tmp_path / "p" / "..", tmp_path / "out", None, 0, is_text)
    assert variables["MALLOC_TOP_PAD_"], "as for other local processes"
    assert settings.read(variables) == read(FLEET, found, tmp_path, is_text)


def read(fleet: Job, found: HostTask, folder: Path, is_text: bool) -> settings.Settings:
    """The settings of the service of a task."""
    return settings.Settings(
        job=fleet,
        program_folder=folder.resolve(),
        run=fleet.name,
        index=found.index,
        ps=found.ps,
        address=found.address,
        out=folder.resolve() / "out",
        parent_pid=0,
        cause="",
        logs_text=is_text,
    )


def test_a_colocated_worker_is_at_the_entry_of_its_ps() -> None:
    colocated = job(fleet={"workers": 2, "colocate": True})
    assert task_of(colocated, Wanted("worker", 1, PS), None) == HostTask("worker", 1, ADDRESSES, ADDRESSES[1])
    with pytest.raises(UsageError, match=r"--role is .ps., expected worker with fleet\.colocate"):
        task_of(colocated, Wanted("ps", 0, PS), None)
    with pytest.raises(UsageError, match="expected --address only for a worker that is none"):
        task_of(colocated, Wanted("worker", 1, PS, "c:4000"), None)
