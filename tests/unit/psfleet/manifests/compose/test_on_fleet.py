"""The compose file of a run that trains on the ps of a standing fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.errors import BadJobError
from psfleet.job.job import parse_job
from psfleet.manifests.compose.on_fleet import ON_FLEET, require_no_way_out
from psfleet.manifests.compose.render import file_text
from psfleet.manifests.on_fleet import OnFleet

JOB: dict[str, Any] = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "ps_addresses": ["ps-0:2222", "ps-1:2222"], "workers": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}

PLACE = OnFleet("lab", "small-1a2b3c4d")


def test_a_run_has_workers_of_its_own_on_the_fleets_network_alone(tmp_path: Path) -> None:
    content = yaml.safe_load(file_text(parse_job(JOB), tmp_path / "job.yaml", None, "", place=PLACE))
    assert content["name"] == "psfleet-small"
    assert content["networks"]["fleet"] == {"external": True, "name": "psfleet-lab_fleet"}
    services = content["services"]
    assert not [name for name in services if name.startswith("ps")]
    for name in ("chief", "worker"):
        assert list(services[name]["networks"]) == ["fleet"], name
        assert services[name]["environment"]["PSFLEET_PS"] == "ps-0:2222,ps-1:2222"
        assert services[name]["labels"][ON_FLEET] == "lab"
        assert services[name]["environment"]["PSFLEET_RUN"] == PLACE.run, "ps may have shards of an earlier run"
    assert services["tensorboard"]["networks"] == ["outside"]


def test_with_tls_workers_have_a_certificate_of_the_fleets_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "a$b"))
    content = yaml.safe_load(file_text(parse_job({**JOB, "tls": True}), tmp_path / "job.yaml", None, "", place=PLACE))
    for name in ("chief", "worker"):
        service = content["services"][name]
        [mounted] = [each for each in service["volumes"] if each["target"] == "/tls"]
        assert (mounted["source"], mounted["read_only"]) == (f"{tmp_path}/a$$b/.psfleet/certs/lab/worker", True)
        assert service["environment"]["PSFLEET_TLS"] == "/tls"
    assert not [each for each in content["services"]["tensorboard"]["volumes"] if each["target"] == "/tls"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"checkpoint": {"shared": True}}, r"checkpoint\.shared is true, expected false on fleet lab: its ps have no"),
        ({"checkpoint": {"store": "s3://bucket/run"}}, r"checkpoint\.store is s3://bucket/run, expected null on fleet"),
    ],
)
def test_what_the_ps_of_a_standing_fleet_lack_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(BadJobError, match=message):
        require_no_way_out(parse_job({**JOB, **sections}), "lab")
    require_no_way_out(parse_job(JOB), "lab")
