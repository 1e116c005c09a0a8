"""Components of `k8s/components` change the same objects in any order, and leave what others have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.json_patch import with_component

K8S = Path(__file__).parents[5] / "k8s"
GPU = ["nvidia.com/gpu"]
SPOT = [
    "cloud.google.com/gke-spot",
    "kubernetes.azure.com/scalesetpriority",
    "spot",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
]
Object = dict[str, Any]


def made_by(*components: str) -> dict[tuple[str, str], Object]:
    """The objects of the base with components, by kind and name."""
    objects: list[Object] = list(yaml.safe_load_all((K8S / "base/fleet.yaml").read_text()))
    for name in components:
        objects = with_component(objects, K8S / "components" / name)
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.parametrize(
    ("components", "worker", "chief"),
    [
        (["gpu"], GPU, GPU),
        (["spot"], SPOT, []),
        (["gpu", "spot"], GPU + SPOT, GPU),
        (["spot", "gpu"], SPOT + GPU, GPU),
    ],
    ids=["gpu", "spot", "gpu+spot", "spot+gpu"],
)
def test_tolerations_add_up(components: list[str], worker: list[str], chief: list[str]) -> None:
    made = made_by(*components)
    for role, expected in {"ps": [], "worker": worker, "chief": chief}.items():
        spec = made["Job", f"lenet-{role}"]["spec"]["template"]["spec"]
        assert [each["key"] for each in spec["tolerations"]] == expected
        assert all(each["operator"] == "Exists" for each in spec["tolerations"])


@pytest.mark.parametrize("components", [["monitoring", "tls"], ["tls", "monitoring"]], ids="+".join)
def test_tls_changes_the_policies_of_the_fleet_alone(components: list[str]) -> None:
    made = made_by(*components)
    own = yaml.safe_load((K8S / "components/monitoring/policy.yaml").read_text())
    assert made["NetworkPolicy", "psfleet-metrics"] == own
    for name in ("lenet", "lenet.ps"):
        spec = made["NetworkPolicy", name]["spec"]
        assert [spec[way][0]["ports"][0]["port"] for way in ("ingress", "egress")] == [2225, 2225]
