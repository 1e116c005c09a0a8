"""The compose file of a service: a front whose ports are published on loopback, and members that only it reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from support.service_samples import request, with_token

from psfleet.job.activity import Activity
from psfleet.job.service_access import ServiceAccess
from psfleet.launch.platform import Request
from psfleet.manifests.compose.driven import CONTENT
from psfleet.manifests.compose.service import file_text

MEMBERS = ("member-0", "member-1")


def rendered(made: Request) -> dict[str, Any]:
    assert made.activity is not None
    assert made.activity.service is not None
    content: dict[str, Any] = yaml.safe_load(file_text(made.job, made.activity, made.activity.service))
    return content


def access(service: dict[str, Any]) -> ServiceAccess:
    return ServiceAccess.from_json(service["environment"]["PSFLEET_SERVICE"], "environment")


def test_the_front_alone_publishes_ports_and_only_on_loopback() -> None:
    services = rendered(request(metrics_port=9000))["services"]
    front = services.pop("front")
    assert [(each["host_ip"], each["published"], each["target"]) for each in front["ports"]] == [
        ("127.0.0.1", "8080", 8000),
        ("127.0.0.1", "8081", 8001),
        ("127.0.0.1", "9000", 2224),
    ]
    assert front["environment"]["PSFLEET_METRICS_PORT"] == "2224"
    assert [*services] == [*MEMBERS]
    assert not any("ports" in each for each in services.values())
    assert "PSFLEET_METRICS_PORT" not in rendered(request())["services"]["front"]["environment"]


def test_members_are_on_a_closed_network_where_the_front_has_a_name_of_its_own() -> None:
    content = rendered(request())
    services = content["services"]
    assert content["networks"]["fleet"]["internal"]
    assert [services[name]["networks"] for name in MEMBERS] == [["fleet"], ["fleet"]]
    (alias,) = services["front"]["networks"]["fleet"]["aliases"]
    assert services["front"]["networks"]["outside"] == {}
    assert services["front"]["environment"]["PSFLEET_ADDRESS"] == f"{alias}:2222"
    assert {access(each).front for each in services.values()} == {f"{alias}:2222"}
    assert alias not in services, "the name of a service is known on both networks of the front"


def test_each_member_mounts_its_own_model_and_program_read_only() -> None:
    content = rendered(request(replicas=2))
    mounts = {
        name: [(each["source"], each["target"], each["read_only"]) for each in service["volumes"]]
        for name, service in content["services"].items()
    }
    one = [("/runs/one", "/model", True), ("/home/one", "/program", True), ("/home/one/data", "/data", True)]
    two = [("two", "/model", True), ("/home/two", "/program", True), ("/home/two/data", "/data", True)]
    assert mounts == {"front": [], "member-0": one, "member-1": two, "member-2": one, "member-3": two}
    assert content["volumes"] == {"two": {"external": True, "name": "psfleet-two_results"}}
    sources = [access(content["services"][f"member-{index}"]).member for index in range(4)]
    assert [each.best for each in sources if each is not None] == [False, True, False, True]


def test_the_token_is_in_no_variable_label_or_mount(tmp_path: Path) -> None:
    made = request(**with_token(tmp_path))
    content = rendered(made)
    assert made.front_files == {"token": b"a-token-of-many-characters"}
    assert "a-token-of" not in json.dumps(content)
    options = access(content["services"]["front"]).options
    assert options is not None
    assert (options.token_file, options.tls_cert) == ("/out/front/token", None)
    assert (options.host, options.published_at) == ("0.0.0.0", "127.0.0.1")
    assert all(access(content["services"][name]).options is None for name in MEMBERS)


def test_all_are_started_again_for_ever_and_frozen_ones_are_killed() -> None:
    services = rendered(request())["services"]
    assert {each["restart"] for each in services.values()} == {"unless-stopped"}
    assert "PSFLEET_RECORDS" not in services["front"]["environment"], "one that has failed for good is tried again"
    tests = {name: each["healthcheck"]["test"][4:] for name, each in services.items()}
    assert tests["front"] == ["/tmp/logs/front-0.alive", "--start-secs", "180", "--end", "--rest-port", "8000"]
    assert tests["member-1"] == ["/tmp/logs/member-1.alive", "--start-secs", "180", "--end"]
    assert {each["environment"]["PSFLEET_OUT"] for each in services.values()} == {"/tmp"}


def test_containers_are_hardened_and_say_what_they_serve() -> None:
    made = request()
    for service in rendered(made)["services"].values():
        assert (service["cap_drop"], service["read_only"], service["tmpfs"]) == (["ALL"], True, ["/tmp"])
        assert service["mem_limit"] == "2g"
        assert Activity.from_json(service["labels"][CONTENT], "label") == made.activity
        assert json.loads(service["environment"]["PSFLEET_JOB"])["name"] == "digits-serve"


def test_members_get_gpus_and_the_front_none() -> None:
    services = rendered(request(container={"worker": {"gpus": True}}))["services"]
    assert {name for name, each in services.items() if "deploy" in each} == {*MEMBERS}


def test_with_tls_all_have_the_certificate_of_a_worker_and_the_front_knows_its_members() -> None:
    services = rendered(request(tls=True))["services"]
    for name, service in services.items():
        assert service["environment"]["PSFLEET_TLS"] == "/tls", name
        (mounted,) = [each["source"] for each in service["volumes"] if each["target"] == "/tls"]
        assert mounted.endswith("/digits-serve/worker"), name
    assert access(services["front"]).members == ("member-0:2222", "member-1:2222")
