"""The loaders of a compose file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from support.program_samples import sample_job

from psfleet.job.job import parse_job
from psfleet.manifests.compose.render import file_text, render
from psfleet.manifests.on_fleet import OnFleet


def services(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    fields = sample_job().model_dump(mode="json")
    fields |= {"input": {"from": "loaders", "loaders": 2}, "fleet": {"ps": 1, "workers": 2}}
    return render(parse_job({**fields, **sections}), tmp_path / "job.yaml")["services"]


def test_a_loader_runs_in_the_image_of_workers_as_closed_as_they_are(tmp_path: Path) -> None:
    found = services(tmp_path, container={"mounts": ["/data:/data"], "loader": {"memory": "3Gi", "cpus": 2}})
    loader, worker = found["loader-1"], found["worker"]
    assert loader["entrypoint"][-2:] == ["-m", "worker_service.loader"]
    own = {"labels", "environment", "entrypoint", "mem_limit", "memswap_limit", "cpus", "networks"}
    of_workers = {"deploy", "depends_on", "labels", "environment", "mem_limit", "memswap_limit", "networks"}
    assert {key: value for key, value in loader.items() if key not in own} == {
        key: value for key, value in worker.items() if key not in of_workers
    }, "its image, mounts, hardening and restarts are those of workers"
    assert loader["networks"].keys() == worker["networks"].keys() == {"fleet"}
    assert (loader["labels"]["psfleet.role"], loader["mem_limit"], loader["cpus"]) == ("loader", "3g", 2)


def test_all_processes_know_all_loaders_and_each_loader_its_own_address(tmp_path: Path) -> None:
    found = services(tmp_path)
    addresses = [f"sample-loader-{index}:2222" for index in range(4)]
    for name in ("ps-0", "loader-0", "loader-1", "worker", "chief"):
        assert found[name]["environment"]["PSFLEET_LOADERS"].split(",") == addresses, name
    assert found["loader-1"]["environment"]["PSFLEET_ADDRESS"] == "sample-loader-1:2222"
    assert found["loader-1"]["environment"]["PSFLEET_INDEX"] == "1"
    assert {"loader-0", "loader-1"} < found["chief"]["depends_on"].keys(), "the chief is stopped before them"


def test_loaders_that_can_be_added_start_only_when_they_are_named(tmp_path: Path) -> None:
    found = services(tmp_path)
    more = [name for name, service in found.items() if service.get("profiles") == ["added"]]
    assert more == ["loader-2", "loader-3"], "up to fleet.max_workers"
    assert found["loader-3"]["environment"]["PSFLEET_ADDRESS"] == "sample-loader-3:2222"
    assert not set(more) & (found["chief"]["depends_on"].keys() | found["worker"]["depends_on"].keys())
    fixed = services(tmp_path, input={"from": "loaders", "loaders": 2, "sharding": "dynamic"})
    assert [name for name in fixed if name.startswith("loader")] == ["loader-0", "loader-1"]


def test_a_loader_mounts_no_results_even_if_all_others_share_them(tmp_path: Path) -> None:
    found = services(tmp_path, checkpoint={"shared": True})
    targets = {name: [each["target"] for each in found[name]["volumes"]] for name in ("worker", "loader-0")}
    assert ("/out" in targets["worker"], "/out" in targets["loader-0"]) == (True, False)


def test_a_job_without_loaders_has_no_trace_of_them(tmp_path: Path) -> None:
    found = services(tmp_path, input={"from": "worker"})
    assert not [name for name in found if name.startswith("loader")]
    assert "PSFLEET_LOADERS" not in found["chief"]["environment"]


def test_with_tls_a_loader_has_the_certificate_of_its_role_alone(tmp_path: Path) -> None:
    found = services(tmp_path, tls=True)
    for name, role in (("loader-0", "loader"), ("worker", "worker"), ("ps-0", "ps")):
        (source,) = [each["source"] for each in found[name]["volumes"] if each["target"] == "/tls"]
        assert Path(source).name == role, name


def test_on_a_network_with_a_way_out_for_workers_a_loader_is_not(tmp_path: Path) -> None:
    found = services(tmp_path, fleet={"ps": 1, "workers": 2, "ps_addresses": ["one:2222"]})
    networks = {name: set(found[name]["networks"]) for name in ("worker", "loader-0")}
    assert networks == {"worker": {"fleet", "outside"}, "loader-0": {"fleet"}}


def test_loaders_of_two_runs_on_a_standing_fleet_have_other_names_and_the_fleets_certificates(tmp_path: Path) -> None:
    hosts: list[str] = []
    for name in ("one", "two"):
        fields = sample_job().model_dump(mode="json") | {"name": name, "tls": True}
        fields |= {"input": {"from": "loaders"}, "fleet": {"ps": 1, "ps_addresses": ["lab-ps-0:2222"]}}
        text = file_text(parse_job(fields), tmp_path / "job.yaml", None, "", place=OnFleet("lab", "id"))
        loader = yaml.safe_load(text)["services"]["loader-0"]
        host = loader["environment"]["PSFLEET_ADDRESS"].removesuffix(":2222")
        assert host in loader["networks"]["fleet"]["aliases"]
        assert loader["environment"]["PSFLEET_RUN"] == "id"
        (source,) = [each["source"] for each in loader["volumes"] if each["target"] == "/tls"]
        assert Path(source).parts[-2:] == ("lab", "loader")
        hosts.append(host)
    assert len(set(hosts)) == 2
