"""The compose profile `monitoring`: the files that it mounts fit each other and the metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.job.job import load_job
from psfleet.manifests import container
from psfleet.manifests.compose import monitoring
from psfleet.manifests.compose.render import render
from psfleet.service.metrics import COMMON_LABELS, METRICS, PREFIX

ROOT = Path(__file__).parents[4]
JOB = ROOT / "examples/lenet/job.yaml"
DASHBOARD = monitoring.FOLDER / "grafana/dashboards/psfleet.json"
ROWS = ["Progress", "Gradients", "Staleness", "Times", "Checkpoints", "Restarts and recovery", "Resources"]
EXPOSED = {
    f"{metric.exposed_name}{end}": metric
    for metric in METRICS
    for end in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    """Its JSON."""
    content: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return content


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """Every query of every panel."""
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(found) > len(ROWS)
    return found


def test_the_dashboard_has_a_row_for_each_part_of_the_fleets_work(dashboard: dict[str, Any]) -> None:
    assert [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"] == ROWS
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_query_asks_for_metrics_and_labels_that_are_exported(dashboard: dict[str, Any]) -> None:
    for expression in expressions(dashboard):
        names = re.findall(rf"{PREFIX}\w+", expression)
        assert names, expression
        for name in names:
            assert name in EXPOSED, expression
        of_all = {label for name in names for label in EXPOSED[name].labels} | {*COMMON_LABELS, "le", "job", "instance"}
        used = {
            *re.findall(r'(\w+)=~?"', expression),
            *(label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")),
        }
        assert used <= of_all, expression
        assert 'run=~"$run"' in expression, "of the chosen runs only"


def test_every_metric_is_on_the_dashboard(dashboard: dict[str, Any]) -> None:
    shown = {EXPOSED[name].name for text in expressions(dashboard) for name in re.findall(rf"{PREFIX}\w+", text)}
    assert {metric.name for metric in METRICS} - shown == {"psfleet_gradients_pending"}


def test_the_dashboard_and_grafana_use_the_same_prometheus(dashboard: dict[str, Any]) -> None:
    folder = monitoring.FOLDER / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    asked = {panel["datasource"]["uid"] for panel in dashboard["panels"] if panel["type"] != "row"}
    assert asked == {source["uid"]}
    assert source["url"] == f"http://prometheus:{monitoring.PROMETHEUS_PORT}"
    (provider,) = yaml.safe_load((folder / "dashboards/psfleet.yaml").read_text())["providers"]
    mounted = {mount["target"] for mount in render(load_job(JOB), JOB)["services"]["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounted


def test_prometheus_looks_up_the_name_that_all_of_the_fleet_share() -> None:
    content = yaml.safe_load((monitoring.FOLDER / "prometheus.yml").read_text())
    ((lookup,),) = [job["dns_sd_configs"] for job in content["scrape_configs"]]
    assert (lookup["names"], lookup["type"], lookup["port"]) == (
        [monitoring.ALIAS], "A", container.METRICS_PORT,
    )  # fmt: skip
    services = render(load_job(JOB), JOB)["services"]
    sharing = {
        name
        for name, service in services.items()
        if isinstance(service["networks"], dict) and lookup["names"] == service["networks"]["fleet"]["aliases"]
    }
    assert sharing == {"ps-0", "ps-1", "worker", "chief"}


def test_the_profile_starts_only_when_it_is_asked_for() -> None:
    services = render(load_job(JOB), JOB)["services"]
    assert {name for name, service in services.items() if service.get("profiles")} == {"prometheus", "grafana"}


def test_without_the_checkout_there_is_no_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(monitoring, "FOLDER", tmp_path / "nowhere")
    assert not {"prometheus", "grafana"} & set(render(load_job(JOB), JOB)["services"])
