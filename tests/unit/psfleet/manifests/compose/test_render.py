"""The compose file of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.job.job import Job, load_job, parse_job
from psfleet.manifests.compose.render import file_text, render

ROOT = Path(__file__).parents[5]
JOB: dict[str, Any] = {
    "name": "small",
    "program": "program:build",
    "options": {"path": "$HOME/data"},
    "fleet": {"ps": 2, "workers": 2, "spares": 1},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}
OF_THE_FLEET = ("ps-0", "ps-1", "chief", "worker")
WATCHERS = ("prometheus", "grafana")
"""Of the profile `monitoring`."""


def services(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    return render(parse_job({**JOB, **sections}), tmp_path / "job.yaml")["services"]


def test_the_rendered_default_is_what_the_command_in_its_first_lines_makes() -> None:
    job_file = ROOT / "examples/lenet/job.yaml"
    path = ROOT / "docker/compose.yaml"
    command = "psfleet render compose examples/lenet/job.yaml --out docker/compose.yaml"
    assert path.read_text() == file_text(load_job(job_file), job_file, path.parent, command), f"run {command}"


def test_every_container_reads_the_same_job_that_was_rendered(tmp_path: Path) -> None:
    job = parse_job(JOB)
    text = file_text(job, tmp_path / "job.yaml", None, "")
    jobs = {
        service["environment"]["PSFLEET_JOB"]
        for name, service in yaml.safe_load(text)["services"].items()
        if name in OF_THE_FLEET
    }
    (content,) = jobs
    assert "$$HOME" in content, "compose would look for a variable"
    assert parse_job(json.loads(content.replace("$$", "$"))) == job


def test_only_what_people_look_at_publishes_a_port_and_only_on_loopback(tmp_path: Path) -> None:
    published = {name: service["ports"] for name, service in services(tmp_path).items() if "ports" in service}
    assert list(published) == ["tensorboard", *WATCHERS]
    assert {port["host_ip"] for ports in published.values() for port in ports} == {"127.0.0.1"}


def test_the_fleet_is_on_an_internal_network_alone_and_tensorboard_is_not_on_it(tmp_path: Path) -> None:
    content = render(parse_job(JOB), tmp_path / "job.yaml")
    assert content["networks"]["fleet"] == {
        "internal": True,
        "enable_ipv6": False,
        "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }, "the engine's machine has no address on its bridge"
    networks = {name: list(service["networks"]) for name, service in content["services"].items()}
    others = {"tensorboard": ["outside"], "prometheus": ["fleet", "outside"], "grafana": ["outside"]}
    assert networks == {**{name: ["fleet"] for name in OF_THE_FLEET}, **others}


def test_no_service_may_do_more_than_it_must(tmp_path: Path) -> None:
    found = services(tmp_path)
    assert {*OF_THE_FLEET, *WATCHERS, "tensorboard"} == found.keys()
    for name, service in found.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"], name
        assert service["tmpfs"][0] == "/tmp", name
        assert service["mem_limit"] == service["memswap_limit"], name
        assert service["pids_limit"] > 0, name
        assert "docker.sock" not in str(service), name


def test_limits_of_the_job_reach_their_role(tmp_path: Path) -> None:
    found = services(tmp_path, container={"ps": {"memory": "512Mi", "cpus": 0.5}, "worker": {"pids": 99}})
    assert (found["ps-0"]["mem_limit"], found["ps-0"]["cpus"]) == ("512m", 0.5)
    assert (found["worker"]["mem_limit"], found["worker"]["pids_limit"]) == ("2g", 99)
    assert "cpus" not in found["chief"]


def test_gpus_of_the_engines_host_go_to_workers_only(tmp_path: Path) -> None:
    found = services(tmp_path, container={"worker": {"gpus": True}})
    gpus = {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}
    assert found["chief"]["deploy"] == {"resources": gpus}
    assert found["worker"]["deploy"] == {"replicas": 2, "resources": gpus}
    assert not any("deploy" in service for name, service in found.items() if name not in ("chief", "worker"))


def test_workers_lease_their_index_and_the_chief_is_told_its_own(tmp_path: Path) -> None:
    found = services(tmp_path)
    assert found["chief"]["environment"]["PSFLEET_INDEX"] == "0"
    assert found["worker"]["environment"]["PSFLEET_INDEX"] == "-1"
    assert found["worker"]["deploy"] == {"replicas": 2}
    assert found["ps-1"]["environment"]["PSFLEET_ADDRESS"] == "ps-1:2222"


@pytest.mark.parametrize(("restarts", "policy"), [(10, "on-failure:10"), (0, "no")])
def test_docker_restarts_as_often_as_the_job_says(tmp_path: Path, restarts: int, policy: str) -> None:
    found = services(tmp_path, fleet={**JOB["fleet"], "max_restarts": restarts})
    assert {found[name]["restart"] for name in OF_THE_FLEET} == {policy}


def test_mounts_are_read_only_and_relative_to_the_file_they_are_written_to(tmp_path: Path) -> None:
    job = parse_job({**JOB, "container": {"mounts": ["../data:/data"]}})
    home = tmp_path / "jobs" / "a"
    found = render(job, home / "job.yaml", tmp_path / "deploy")["services"]["chief"]["volumes"]
    binds = {mount["target"]: mount for mount in found if mount["type"] == "bind"}
    assert {target: mount["source"] for target, mount in binds.items()} == {
        "/program": "../jobs/a",
        "/data": "../jobs/data",
    }
    assert all(mount["read_only"] for mount in binds.values())
    of_ps = render(job, home / "job.yaml", tmp_path / "deploy")["services"]["ps-0"]["volumes"]
    assert [mount for mount in of_ps if mount["type"] == "bind"] == [binds["/program"]], "it compares its digest"
    absolute = render(job, home / "job.yaml")["services"]["worker"]["volumes"]
    assert str(home) in [mount["source"] for mount in absolute]


def test_a_program_in_the_image_is_not_mounted(tmp_path: Path) -> None:
    found = services(tmp_path, container={"program": "image", "worker_image": "mine:1"})
    assert found["worker"]["image"] == "mine:1"
    assert [mount["target"] for mount in found["chief"]["volumes"]] == ["/out"]
    assert [found[name]["volumes"] for name in ("worker", "ps-0")] == [[], []]


@pytest.mark.parametrize("is_shared", [False, True])
def test_only_the_chief_has_the_volume_unless_the_job_shares_it(tmp_path: Path, is_shared: bool) -> None:
    found = services(tmp_path, checkpoint={"shared": is_shared})
    mounts = {name: any(each["type"] == "volume" for each in found[name]["volumes"]) for name in OF_THE_FLEET}
    assert mounts == {name: is_shared or name == "chief" for name in OF_THE_FLEET}


def test_the_chief_is_stopped_first_and_the_ps_last(tmp_path: Path) -> None:
    found = services(tmp_path)
    assert set(found["chief"]["depends_on"]) == {"ps-0", "ps-1", "worker"}
    assert set(found["worker"]["depends_on"]) == {"ps-0", "ps-1"}


def test_workers_of_ps_that_run_elsewhere_have_a_way_out(tmp_path: Path) -> None:
    fleet = {"ps": 1, "workers": 2, "ps_addresses": ["10.0.0.1:2222"]}
    found = services(tmp_path, fleet=fleet)
    assert set(found) == {"chief", "worker", "tensorboard", *WATCHERS}
    assert list(found["worker"]["networks"]) == ["fleet", "outside"]


def test_a_job_of_the_command_line_is_rendered_with_its_overrides(tmp_path: Path) -> None:
    job: Job = load_job(ROOT / "examples/lenet/job.yaml", ["train.steps=7"])
    text = render(job, tmp_path / "job.yaml")["services"]["chief"]["environment"]["PSFLEET_JOB"]
    assert parse_job(json.loads(text)).train.steps == 7


def test_only_the_chief_of_a_run_that_is_paused_holds_it(tmp_path: Path) -> None:
    paused = yaml.safe_load(file_text(parse_job(JOB), tmp_path / "job.yaml", None, "", paused=True))["services"]
    assert {name for name, one in paused.items() if "PSFLEET_HOLD" in one.get("environment", {})} == {"chief"}
    assert paused["chief"]["environment"].pop("PSFLEET_HOLD") == "start"
    assert paused == yaml.safe_load(file_text(parse_job(JOB), tmp_path / "job.yaml", None, ""))["services"]


@pytest.mark.parametrize(
    ("secs", "text"), [(60, "60s"), (1_000_000, "1000000s"), (0.5, "0.5s"), (1e6 + 0.5, "1000000.5s")]
)
def test_a_duration_has_the_form_that_compose_can_parse(tmp_path: Path, secs: float, text: str) -> None:
    """It knows no exponents."""
    found = services(tmp_path, deadlines={"start_secs": secs, "stop_secs": secs})["ps-0"]
    assert (found["stop_grace_period"], found["healthcheck"]["start_period"]) == (text, text)


def test_a_colocated_worker_has_a_service_and_the_address_of_its_ps(tmp_path: Path) -> None:
    store = {"checkpoint": {"store": "s3://bucket/run"}, "tls": True}
    found = services(tmp_path, fleet={"workers": 3, "colocate": True}, **store)
    assert set(found) & {"ps-0", "worker"} == set()
    hosts = {"chief": "worker-0", "worker-1": "worker-1", "worker-2": "worker-2"}
    for index, (name, host) in enumerate(hosts.items()):
        environment = found[name]["environment"]
        assert environment["PSFLEET_PS"] == "worker-0:2222,worker-1:2222,worker-2:2222"
        assert (environment["PSFLEET_INDEX"], environment["PSFLEET_ADDRESS"]) == (str(index), f"{host}:2222")
        assert name == host or host in found[name]["networks"]["fleet"]["aliases"]
        assert "AWS_ACCESS_KEY_ID" in environment, "it writes its part of each checkpoint"
    assert found["chief"]["depends_on"].keys() == {"worker-1", "worker-2"}
    assert services(tmp_path, fleet={"workers": 1, "colocate": True})["chief"]["depends_on"] == {}


@pytest.mark.parametrize("colocate", [False, True])
def test_the_header_names_the_service_worker_where_there_is_one(tmp_path: Path, colocate: bool) -> None:
    job = parse_job({**JOB, "fleet": {"workers": 3, "colocate": colocate}})
    text = file_text(job, tmp_path / "job.yaml", None, "")
    assert ("--scale worker=N" in text) == ("worker" in yaml.safe_load(text)["services"]) == (not colocate)
