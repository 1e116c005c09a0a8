"""The compose file of a standing fleet, and the containers of its clients."""

from __future__ import annotations

import json
from typing import Any

import yaml

from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.compose.client import client_options
from psfleet.manifests.compose.render import container_hardening
from psfleet.manifests.compose.standing import STANDING, addresses, file_text, render

FILE = FleetFile.model_validate(
    {
        "name": "lab",
        "fleet": {"ps": 2, "workers": 1},
        "container": {"worker_image": "mine$1", "ps": {"memory": "3Gi"}, "worker": {"cpus": 1.5, "pids": 99}},
        "deadlines": {"stop_secs": 7},
    }
)
ACCESS = FleetAccess(name="lab", id="lab-1", version="1", ps=addresses("ps", 2), workers=addresses("worker", 1))


def options() -> dict[str, Any]:
    return dict(client_options(FILE, ACCESS, 3, "client.py", ["a", "--b"]))


def test_each_process_is_a_service_that_the_engine_always_starts_again() -> None:
    content = render(FILE, ACCESS)
    assert content["name"] == "psfleet-lab"
    assert list(content["services"]) == ["ps-0", "ps-1", "worker-0"]
    for name, service in content["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert service["stop_grace_period"] == "7s", name
        assert service["environment"]["PSFLEET_ADDRESS"] == f"{name}:2222"
        assert service["environment"]["PSFLEET_INDEX"] == name[-1]
        assert service["labels"]["psfleet.role"] == name[:-2]
        assert service["environment"]["PSFLEET_FAILURE"] == "/tmp/psfleet-failure", "for the health check"
        assert "/tmp" in service["tmpfs"], "which begins empty at each start"
        assert service["healthcheck"]["test"] == ["CMD", "python", "-m", "psfleet.service.health"]
        for key, value in container_hardening().items():
            assert service[key] == value, name
    assert content["services"]["ps-0"]["mem_limit"] == "3g"
    assert content["services"]["worker-0"]["cpus"] == 1.5


def test_no_way_leads_into_the_network_or_out_of_it() -> None:
    content = render(FILE, ACCESS)
    assert content["networks"] == {
        "fleet": {
            "internal": True,
            "enable_ipv6": False,
            "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
        }
    }
    assert all(service["networks"] == ["fleet"] for service in content["services"].values())
    assert "ports" not in str(content)


def test_every_process_knows_the_fleet_and_its_file() -> None:
    services = yaml.safe_load(file_text(FILE, ACCESS))["services"]
    assert len(services) == 3
    for service in services.values():
        assert FleetAccess.from_json(service["environment"]["PSFLEET_FLEET"], "") == ACCESS
        text = service["labels"][STANDING]
        assert "mine$$1" in text, "compose would look for a variable"
        assert FleetFile.model_validate_json(text.replace("$$", "$")) == FILE


def test_a_client_is_on_the_fleets_network_alone_with_the_limits_of_a_worker() -> None:
    found = options()
    assert (found["name"], found["hostname"]) == ("psfleet-lab-client-3", "psfleet-lab-client-3")
    assert found["network"] == "psfleet-lab_fleet"
    assert "ports" not in found
    assert (found["image"], found["pids_limit"], found["nano_cpus"]) == ("mine$1", 99, 1_500_000_000)
    assert found["mem_limit"] == found["memswap_limit"] == 2 << 30
    assert (found["cap_drop"], found["read_only"], list(found["tmpfs"])) == (["ALL"], True, ["/tmp"])
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["log_config"]["config"] == {"max-size": "20m", "max-file": "5"}


def test_a_client_gets_the_script_its_arguments_and_the_fleet() -> None:
    found = options()
    assert found["command"][-3:] == ["/program/client.py", "a", "--b"]
    assert json.loads(found["environment"]["PSFLEET_FLEET"]) == ACCESS.model_dump()
    assert found["environment"]["PYTHONSAFEPATH"] == "", "it imports modules beside it"
    assert (found["stdin_open"], found["auto_remove"]) == (True, True)
    assert found["labels"]["com.docker.compose.project"] == "psfleet-lab"
    assert found["labels"]["psfleet.role"] == "client"
