"""Standing fleets and runs on one Docker engine: neither takes the other for its own. No engine is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from docker.errors import APIError
from support.compose_samples import container
from support.scripted_platform import job

import psfleet
from psfleet.errors import LostPeerError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.launch.platform import Request
from psfleet.manifests.compose.on_fleet import ON_FLEET
from psfleet.manifests.compose.standing import STANDING
from psfleet.platforms.compose import engine
from psfleet.platforms.compose.containers import index_of
from psfleet.platforms.compose.platform import Compose
from psfleet.platforms.compose.serving import has_failed, not_serving
from psfleet.platforms.compose.standing import ComposeFleets
from psfleet.platforms.standing.placing import on_fleet
from psfleet.service import settings

FILE = FleetFile.model_validate({"name": "small"})
ACCESS = FleetAccess(name="small", id="small-1", version=psfleet.__version__, ps=["ps-0:2222", "ps-1:2222"])


@pytest.fixture(autouse=True)
def _no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.STATE, str(tmp_path))
    monkeypatch.setattr(engine, "require_plugin", lambda: None)
    monkeypatch.setattr(engine, "require_images", lambda client, names: None)


def standing(**attributes: Any) -> Any:
    """The ps of a fleet that stands."""
    found = container("ps", **attributes)
    found.labels[STANDING] = FILE.model_dump_json()
    return found


def listing(*found: Any) -> SimpleNamespace:
    """An engine with these containers, which fails if anything else is asked of it."""

    def listed(filters: Mapping[str, Any], **query: Any) -> list[Any]:
        labels = filters["label"] if isinstance(filters["label"], list) else [filters["label"]]
        pairs = [label.partition("=") for label in labels]
        return [
            each
            for each in found
            if all(key in each.labels and value in ("", each.labels[key]) for key, _, value in pairs)
        ]

    by_name = {each.name: each for each in found}
    return SimpleNamespace(
        containers=SimpleNamespace(list=listed, get=by_name.__getitem__),
        volumes=SimpleNamespace(list=lambda **query: []),
    )


def fleets(*found: Any) -> ComposeFleets:
    place = ComposeFleets()
    place.__dict__["_client"] = place._shown.__dict__["_client"] = listing(*found)
    return place


def runs(*found: Any) -> Compose:
    place = Compose()
    place.__dict__["_client"] = listing(*found)
    return place


def test_a_run_neither_replaces_nor_ends_a_fleet_that_stands(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    tmp_path.chmod(0o755)
    for call in (
        lambda: runs(standing()).apply(Request(job(), tmp_path / "job.yaml")),
        lambda: runs(standing()).remove("small", results=True),
    ):
        with pytest.raises(UsageError, match="small is a fleet that stands, expected another name for a run: `psfleet"):
            call()


def test_a_fleet_does_not_take_the_name_of_a_run() -> None:
    with pytest.raises(UsageError, match="small is a run on the Docker engine, expected another name"):
        fleets(container("ps"), container("chief")).up(FILE)


def test_a_run_is_no_standing_fleet() -> None:
    place = fleets(container("ps"), container("chief"))
    assert place.members("small") == []
    for call in (lambda: place.down("small"), lambda: place.run("small", Path("client.py"), [])):
        with pytest.raises(UsageError, match=r"no fleet 'small' is on the Docker engine, .* started: there is none"):
            call()


def test_another_fleet_is_named_with_those_that_are_there() -> None:
    with pytest.raises(UsageError, match=r"no fleet 'lab' .*: small$"):
        fleets(standing()).access("lab")


def test_a_fleet_with_a_run_on_it_stays() -> None:
    worker = container("worker")
    worker.labels.update({"com.docker.compose.project": "psfleet-linear", ON_FLEET: "small"})
    with pytest.raises(UsageError, match="fleet small has runs: linear, expected none: `psfleet down linear` ends"):
        fleets(standing(), worker).down("small")


def test_workers_that_are_added_to_a_run_on_a_fleet_are_on_the_network_of_that_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").touch()
    chief, texts = container("chief"), []
    chief.labels.update({"com.docker.compose.project.working_dir": str(tmp_path), ON_FLEET: "large"})
    chief.attrs["Config"]["Env"] = [f"{settings.RUN}=small-1a2b3c4d"]
    monkeypatch.setattr(engine, "compose", lambda name, text, *arguments: texts.append(yaml.safe_load(text)))
    trained = job(name="small", fleet={"ps": 1, "workers": 2, "max_workers": 4, "ps_addresses": ["ps-0:2222"]})
    runs(chief).scale(trained, 3)
    assert texts[0]["networks"]["fleet"] == {"external": True, "name": "psfleet-large_fleet"}
    assert texts[0]["services"]["worker"]["environment"][settings.RUN] == "small-1a2b3c4d"
    assert settings.HOLD not in texts[0]["services"]["chief"]["environment"], "the run is not one that is held"


def test_a_run_takes_all_ps_of_a_fleet_and_its_tls() -> None:
    ps = standing(Config={"Hostname": "h", "Env": [f"{settings.FLEET}={ACCESS.model_dump_json()}"]})
    placed = on_fleet(job(fleet={"ps": 1, "workers": 3}), "small", fleets(ps))
    assert (placed.fleet.ps, placed.fleet.ps_addresses) == (2, ["ps-0:2222", "ps-1:2222"])
    assert not placed.tls
    with pytest.raises(
        UsageError, match="--fleet small: the job has tls: true, expected a fleet with it, or --set tls"
    ):
        on_fleet(job(tls=True), "small", fleets(ps))
    secured = ACCESS.model_copy(update={"tls": True})
    ps.attrs["Config"]["Env"] = [f"{settings.FLEET}={secured.model_dump_json()}"]
    assert on_fleet(job(), "small", fleets(ps)).tls


def test_no_other_authority_is_made_for_a_fleet_that_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job.yaml").touch()
    tmp_path.chmod(0o755)
    secured = FILE.model_copy(update={"tls": True})
    ps = standing(Config={"Hostname": "h", "Env": [f"{settings.FLEET}={ACCESS.model_dump_json()}"]})
    ps.labels[STANDING] = secured.model_dump_json()
    trained = job(name="linear", tls=True, fleet={"ps": 2, "workers": 1, "ps_addresses": ACCESS.ps})
    for call in (
        lambda: fleets(ps).up(secured),
        lambda: fleets(ps).run("small", tmp_path / "client.py", []),
        lambda: runs(ps).apply(Request(trained, tmp_path / "job.yaml", fleet="small")),
    ):
        with pytest.raises(UsageError, match=r"small has tls: true, and .*certs/small is missing, expected the certif"):
            call()
    assert not (tmp_path / ".psfleet").exists()


def test_a_fleet_that_is_up_with_other_settings_stays_as_it_is() -> None:
    other = FILE.model_copy(update={"tls": False, "fleet": FILE.fleet.model_copy(update={"ps": 2})})
    with pytest.raises(UsageError, match="fleet small is up with other settings, expected the same, or `psfleet fleet"):
        fleets(standing()).up(other)


def test_the_processes_of_a_standing_fleet_have_the_indices_of_their_services() -> None:
    labels = {"psfleet.role": "worker", "com.docker.compose.service": "worker-11", STANDING: ""}
    assert index_of(labels) == 11
    assert [(each.role, each.index) for each in fleets(standing()).members("small")] == [("ps", 0)]


def test_a_process_serves_once_its_health_check_says_so() -> None:
    answers = iter([(1, b"no response on port 2223\n"), (0, b"")])
    ps = standing()
    ps.reload = lambda: None
    ps.exec_run = lambda command: SimpleNamespace(**dict(zip(("exit_code", "output"), next(answers), strict=True)))
    assert not_serving([ps]) == "ps-0: no response on port 2223"
    assert not_serving([ps]) == ""

    def has_ended(command: object) -> None:
        raise APIError("not running", SimpleNamespace(status_code=409))

    ps.exec_run = has_ended
    assert not_serving([ps]) == "ps-0 has ended"


def test_a_process_that_has_failed_for_good_ends_the_wait_and_is_started_again_by_the_next_command() -> None:
    ps = standing(State={"Status": "running", "Health": {"Status": "starting"}})
    ps.reload = lambda: None
    said = [b"failed with exit code 78: TLS: /tls/tls.crt expired\n"]
    ps.exec_run = lambda command: SimpleNamespace(exit_code=1, output=said[-1])
    with pytest.raises(LostPeerError, match=r"ps-0 failed with exit code 78: TLS: /tls/tls\.crt expired$"):
        not_serving([ps])
    assert has_failed(ps)
    said.append(b"no response on port 2223\n")
    assert not has_failed(ps)
    said.append(said[0])
    ps.attrs["State"]["Health"]["Status"] = "healthy"
    assert not has_failed(ps), "a check takes a third of a second"


def test_a_process_that_would_fail_again_ends_the_wait() -> None:
    ps = standing(State={"Status": "restarting", "ExitCode": 75})
    ps.reload = lambda: None
    ps.logs = lambda tail: (
        b'{"time": 1.0, "level": "error", "event": "failed", "message": "a", "exit_code": 75, "details": ""}'
    )
    assert not_serving([ps]) == "ps-0 is restarting: a (exit code 75)"
    ps.attrs["State"]["ExitCode"] = 78
    with pytest.raises(LostPeerError, match=r"ps-0 failed: exit code 78"):
        not_serving([ps])
