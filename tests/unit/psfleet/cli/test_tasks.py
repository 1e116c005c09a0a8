"""`psfleet task`: what the service is started with, what the folder is marked with, and what is refused before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.command_line import Psfleet

from psfleet.processes import command
from psfleet.run_folder import Owner, owner
from psfleet.service import settings
from psfleet.tls import certificates

CHIEF = ("task", "job.yaml", "--role", "worker", "--index", "0", "--ps", "127.0.0.1:2222")
PS = ("task", "job.yaml", "--role", "ps", "--index", "0", "--ps", "127.0.0.1:2222")


@dataclass
class Became:
    """Stub for `become`: records the modules with their environments, and exits with 7."""

    calls: list[tuple[str, settings.Settings]] = field(default_factory=list)

    def __call__(self, module: str, environment: Mapping[str, str]) -> None:
        self.calls.append((module, settings.read(environment)))
        raise SystemExit(7)


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> Iterator[Became]:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    stub = Became()
    monkeypatch.setattr(command, "become", stub)
    return stub


def test_the_command_becomes_the_service(psfleet: Psfleet, became: Became) -> None:
    said = psfleet(*CHIEF, "--set", "train.steps=7", "--out", "out", "--metrics-port", "9000", "--json")
    assert (said.code, said.out, said.err) == (7, "", "")
    [(module, found)] = became.calls
    assert module == "worker_service"
    assert found.job is not None
    assert (found.job.train.steps, found.run, found.index) == (7, "tiny", 0)
    assert (found.address.data, found.metrics_port, found.logs_text) == ("127.0.0.1:2300", 9000, False)
    assert (found.out, found.program_folder) == (Path("out").resolve(), Path().resolve())


def test_only_the_chief_marks_the_folder_and_keeps_what_is_in_it(psfleet: Psfleet, became: Became) -> None:
    psfleet(*PS)
    assert not Path("runs").exists()
    psfleet(*CHIEF)
    assert owner(Path("runs/tiny")) == Owner("tiny", "hosts")
    Path("runs/tiny/report.json").write_text("{}")
    psfleet(*CHIEF)
    assert Path("runs/tiny/report.json").read_text() == "{}"
    assert [module for module, _ in became.calls] == ["ps_service", "worker_service", "worker_service"]
    assert all(found.logs_text for _, found in became.calls)


def test_all_of_it_may_come_from_tf_config(psfleet: Psfleet, became: Became, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"ps": ["127.0.0.1:2222"], "chief": ["127.0.0.1:2400"], "worker": ["127.0.0.1:2500"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    psfleet("task", "job.yaml")
    [(module, found)] = became.calls
    assert (module, found.index, found.address.data) == ("worker_service", 1, "127.0.0.1:2500")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (PS[:-2], 64, "--ps is missing, expected HOST:PORT of each ps, a TF_CONFIG with cluster.ps, or fleet."),
        ((*PS[:-1], "a:1,b:1"), 78, "the fleet has 2 ps addresses, expected fleet.ps = 1"),
        ((*PS, "--index", "1"), 64, "ps 1: expected an index from 0 to 0"),
        ((*PS, "--tls", "certs/ps"), 64, "--tls: the job has tls: false, expected tls: true"),
        ((*PS, "--set", "tls=true", "--tls", "certs/worker"), 78, "has a certificate for worker, expected ps"),
        ((*PS, "--set", "tls=true", "--tls", "nowhere"), 78, "TLS: nowhere"),
    ],
)
def test_a_task_that_cannot_run_is_refused_in_one_line(
    psfleet: Psfleet, became: Became, arguments: tuple[str, ...], code: int, message: str
) -> None:
    certificates.make(Path("certs"))
    said = psfleet(*arguments)
    assert said.code == code, said
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert not became.calls


def test_with_tls_a_task_has_the_certificate_of_its_role(
    psfleet: Psfleet, became: Became, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    certificates.make(Path(".psfleet/certs/tiny"))
    psfleet(*PS, "--set", "tls=true")
    psfleet(*CHIEF, "--set", "tls=true", "--tls", ".psfleet/certs/tiny/worker")
    folders = [found.tls for _, found in became.calls]
    assert folders == [Path(".psfleet/certs/tiny", role).resolve() for role in ("ps", "worker")]


def test_the_chief_refuses_the_folder_of_another_run(psfleet: Psfleet, became: Became) -> None:
    psfleet(*CHIEF, "--out", "here")
    said = psfleet(*CHIEF, "--set", "name=other", "--out", "here")
    assert said.code == 64
    assert "--out here: has a run of job tiny" in said.err
    Path("here/checkpoints").mkdir()
    said = psfleet("up", "job.yaml", "--out", "here")
    assert "a run on platform hosts, which `psfleet task` continues" in said.err
