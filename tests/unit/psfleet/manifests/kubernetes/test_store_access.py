"""What the pods of a fleet get for checkpoints in an object store: the way out, credentials from Secrets, no volume."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.job.job import parse_job
from psfleet.manifests.kubernetes.render import render

Object = dict[str, Any]
ROOT = Path(__file__).parents[5]
JOB: Object = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 3},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Object]:
    """The objects of the fleet of the documentation's example, by kind and name."""
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "store:" in block]
    job = parse_job({**JOB, **yaml.safe_load(example)})
    found = render(job, tmp_path_factory.mktemp("job") / "job.yaml")
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pod(objects: dict[tuple[str, str], Object], component: str) -> Object:
    spec: Object = objects["Job", f"small-{component}"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("component", ["ps", "chief"])
def test_ps_and_chief_have_the_credentials_by_reference(objects: dict[tuple[str, str], Object], component: str) -> None:
    (container,) = pod(objects, component)["containers"]
    variables = {each["name"]: each for each in container["env"]}
    assert variables["AWS_DEFAULT_REGION"]["value"] == "eu-central-1"
    for name, key in [("AWS_ACCESS_KEY_ID", "access-key"), ("AWS_SECRET_ACCESS_KEY", "secret-key")]:
        assert variables[name] == {"name": name, "valueFrom": {"secretKeyRef": {"name": "models", "key": key}}}


def test_the_policy_of_all_pods_lets_them_out_to_the_store(objects: dict[tuple[str, str], Object]) -> None:
    spec = objects["NetworkPolicy", "small"]["spec"]
    assert {"ports": [{"protocol": "TCP", "port": 443}]} in spec["egress"]
    for component in ("ps", "chief"):
        labels = objects["Job", f"small-{component}"]["spec"]["template"]["metadata"]["labels"]
        assert spec["podSelector"]["matchLabels"].items() <= labels.items(), component


def test_only_the_chief_mounts_the_claim(objects: dict[tuple[str, str], Object]) -> None:
    claims = {
        component: [each for each in pod(objects, component)["volumes"] if "persistentVolumeClaim" in each]
        for component in ("ps", "chief", "worker")
    }
    assert {component: len(found) for component, found in claims.items()} == {"ps": 0, "chief": 1, "worker": 0}
