"""The compose file of a fleet that drives a study: a driver and workers, closed and hardened as a run's are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.activity_samples import ACTIVITY, driven_job

from psfleet.job.activity import Activity
from psfleet.manifests.compose.driven import ACTIVITY as LABEL
from psfleet.manifests.compose.driven import CONTENT, file_text, render
from psfleet.manifests.compose.render import render as render_run

WORKERS = ("worker-0", "worker-1")


def services(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    return render(driven_job(**sections), ACTIVITY, tmp_path / "job.yaml")["services"]


def test_it_has_a_driver_and_its_workers_and_nothing_else(tmp_path: Path) -> None:
    found = services(tmp_path)
    assert [*found] == [*WORKERS, "chief"]
    assert [each["entrypoint"][-1] for each in found.values()] == ["worker_service.trial"] * 2 + ["psfleet.sweep"]
    assert [each["environment"]["PSFLEET_INDEX"] for each in found.values()] == ["0", "1", "0"]
    assert {found[name]["environment"]["PSFLEET_DRIVER"] for name in WORKERS} == {"chief:2222"}
    assert found["chief"]["environment"]["PSFLEET_ADDRESS"] == "chief:2222"
    assert not {"PSFLEET_PS", "PSFLEET_METRICS_PORT"} & {
        name for each in found.values() for name in each["environment"]
    }


def test_each_side_gets_its_own_variables(tmp_path: Path) -> None:
    found = services(tmp_path)
    assert found["chief"]["environment"]["PSFLEET_STUDY"] == '{"path": "$$HOME"}', "compose would look for a variable"
    assert "PSFLEET_TRIALS" not in found["chief"]["environment"]
    for name in WORKERS:
        assert found[name]["environment"]["PSFLEET_TRIALS"] == "{}"
        assert "PSFLEET_STUDY" not in found[name]["environment"]


def test_all_are_on_a_closed_network_and_no_port_is_published(tmp_path: Path) -> None:
    content = render(driven_job(), ACTIVITY, tmp_path / "job.yaml")
    assert [*content["networks"]] == ["fleet"]
    assert content["networks"]["fleet"]["internal"]
    for service in content["services"].values():
        assert service["networks"] == ["fleet"]
        assert "ports" not in service


def test_limits_restrictions_mounts_and_restarts_are_those_of_a_run(tmp_path: Path) -> None:
    sections = {"container": {"worker": {"memory": "1Gi", "cpus": 2}, "mounts": ["/srv/data:/data"]}, "tls": True}
    of_run = render_run(driven_job(**sections), tmp_path / "job.yaml")["services"]
    found = services(tmp_path, **sections)
    same = ("image", "restart", "volumes", "stop_grace_period", "cap_drop", "security_opt", "read_only", "tmpfs")
    same += ("mem_limit", "memswap_limit", "pids_limit", "cpus", "logging")
    for name in WORKERS:
        assert {key: found[name][key] for key in same} == {key: of_run["worker"][key] for key in same}
    assert {key: found["chief"][key] for key in same} == {key: of_run["chief"][key] for key in same}
    assert {each["environment"]["PSFLEET_TLS"] for each in found.values()} == {"/tls"}


def test_only_the_driver_serves_health(tmp_path: Path) -> None:
    assert ["healthcheck" in each for each in services(tmp_path).values()] == [False, False, True]


def test_containers_and_volume_say_what_the_fleet_does(tmp_path: Path) -> None:
    text = file_text(driven_job(), ACTIVITY, tmp_path / "job.yaml")
    content = yaml.safe_load(text)
    assert content["volumes"] == {"results": {"labels": {LABEL: "study"}}}
    for service in content["services"].values():
        assert service["labels"][LABEL] == "study"
        label = service["labels"][CONTENT]
        assert Activity.from_json(label.replace("$$", "$"), "label") == ACTIVITY
        assert json.loads(service["environment"]["PSFLEET_JOB"])["name"] == "small"


def test_the_driver_alone_mounts_a_model_of_this_machine(tmp_path: Path) -> None:
    activity = ACTIVITY.model_copy(update={"model_folder": "/runs/$1"})
    found = render(driven_job(), activity, tmp_path / "job.yaml")["services"]
    mount = found["chief"]["volumes"][-1]
    assert (mount["source"], mount["target"], mount["read_only"]) == ("/runs/$$1", "/model", True)
    assert not [each for name in WORKERS for each in found[name]["volumes"] if each["target"] == "/model"]


def test_the_driver_mounts_the_results_of_another_fleet_as_its_model(tmp_path: Path) -> None:
    activity = ACTIVITY.model_copy(update={"model_fleet": "digits"})
    content = render(driven_job(), activity, tmp_path / "job.yaml")
    assert content["volumes"]["model"] == {"external": True, "name": "psfleet-digits_results"}
    mount = {"type": "volume", "source": "model", "target": "/model", "read_only": True}
    assert [name for name, each in content["services"].items() if mount in each["volumes"]] == ["chief"]
    assert "model" not in render(driven_job(), ACTIVITY, tmp_path / "job.yaml")["volumes"]


def test_the_driver_alone_reaches_a_store_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    bundle = tmp_path / "ca.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    sections = {"checkpoint": {"store": "s3://bucket/run"}, "tls": True}
    content = render(driven_job(**sections), ACTIVITY, tmp_path / "job.yaml")
    assert set(content["networks"]) == {"fleet", "outside"}
    chief, worker = content["services"]["chief"], content["services"]["worker-0"]
    assert chief["networks"] == ["fleet", "outside"]
    assert worker["networks"] == ["fleet"]
    assert chief["environment"]["AWS_SECRET_ACCESS_KEY"] is None, "compose takes it from its own environment"
    assert str(bundle) in [each["source"] for each in chief["volumes"]]
    assert "AWS_SECRET_ACCESS_KEY" not in worker["environment"]
    assert str(bundle) not in [each["source"] for each in worker["volumes"]]
