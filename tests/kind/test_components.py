"""The components of `k8s/components` on a real cluster: all are taken, and what can work without hardware does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.kind_fleet import COMMAND_SECS, START_SECS, Space
from support.visitors import STRANGER, address, opens, pod_manifest

from psfleet.polling import wait_until

K8S = Path(__file__).parents[2] / "k8s"
METRICS_PORT = "2224"
SCRAPE = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://{sys.argv[1]}:2224/metrics", timeout=10).read().decode())
"""
RUNS = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:6006/data/runs', timeout=10).read())"


def kustomization(space: Space, name: str, resource: Path, *components: str) -> str:
    """A folder that changes manifests by components; its path."""
    folder = space.folder / name
    folder.mkdir()
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": space.name,
        "resources": [os.path.relpath(resource, folder.resolve())],
        "components": [os.path.relpath(K8S / "components" / each, folder.resolve()) for each in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return str(folder)


@pytest.mark.parametrize("component", sorted(folder.name for folder in (K8S / "components").iterdir()))
def test_the_cluster_takes_every_component(space: Space, component: str) -> None:
    folder = kustomization(space, component, K8S / "base", component)
    output = space.kubectl("apply", "--dry-run=server", "-k", folder)
    for name in ("lenet-ps", "lenet-chief", "lenet-worker"):
        assert f"job.batch/{name} created (server dry run)" in output


@pytest.fixture
def monitoring(space: Space) -> Iterator[str]:
    """The name of a pod in the namespace that may read metrics."""
    space.kubectl("create", "namespace", "monitoring")
    try:
        path = space.folder / "prometheus.yaml"
        path.write_text(pod_manifest("prometheus", "sleep", "3600"))
        space.kubectl("apply", "--namespace=monitoring", "-f", str(path))
        space.kubectl("wait", "--namespace=monitoring", "--for=condition=Ready", "pod/prometheus", "--timeout=100s")
        yield "prometheus"
    finally:
        space.kubectl("delete", "namespace", "monitoring", "--wait=false")


@pytest.mark.timeout(START_SECS * 3)
def test_tensorboard_and_prometheus_see_a_fleet_and_nobody_else_does(space: Space, monitoring: str) -> None:
    job = space.job_file(
        "seen", {"step_secs": 0.3}, train={"steps": 100000, "batch_size": 1}, summaries={"every_steps": 2}
    )
    base = Path(job).parent / "base"
    base.mkdir()
    (base / "fleet.yaml").write_text(space.rendered(job))
    (base / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["fleet.yaml"]}))
    folder = kustomization(space, "variation", base, "monitoring", "spot", "tensorboard")
    space.kubectl("apply", "-k", folder)
    space.apply("stranger", pod_manifest("stranger", "sleep", "3600"))
    space.wait_for_step("seen", 5, START_SECS)

    ps = space.pod("ps", 0)
    assert ps["metadata"]["annotations"]["prometheus.io/port"] == METRICS_PORT
    host = ps["status"]["podIP"]
    scrape = ("exec", "--namespace=monitoring", monitoring, "--", "python", "-c")
    assert "psfleet_token_wait_seconds_total" in space.kubectl(*scrape, SCRAPE, host)
    assert space.kubectl(*scrape, STRANGER.read_text(), host, "2222", "2223", "2226").split() == []
    address(space, "stranger")
    assert opens(space, host, METRICS_PORT) == []

    def runs() -> str:
        return space.kubectl("exec", "deployment/psfleet-tensorboard", "--", "python", "-c", RUNS, check=False)

    wait_until(
        runs, COMMAND_SECS, "TensorBoard to show the run", done=lambda text: text.strip() == "b'[\".\"]'", poll_secs=2
    )
