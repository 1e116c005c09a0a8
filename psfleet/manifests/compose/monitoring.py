"""Services of the compose profile `monitoring`: a Prometheus that scrapes the fleet, and a Grafana that shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psfleet
from psfleet.manifests.compose.mounts import bind

PROFILE = "monitoring"
ALIAS = "fleet-metrics"
"""A name that every ps, loader and worker has on the fleet's network; docker/monitoring/prometheus.yml looks it up."""
FOLDER = Path(psfleet.__file__).resolve().parents[1] / "docker" / "monitoring"
"""Configuration of both services, which is mounted; it is part of the checkout, not of an installed package."""

PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE = "grafana/grafana:12.1.0"
PROMETHEUS_PORT, GRAFANA_PORT = 9090, 3000
PORTS_EACH = 31
"""Length of the range of host ports; the engine publishes the first free one, for several fleets at a time."""

_GRAFANA_ENVIRONMENT = {
    "GF_AUTH_ANONYMOUS_ENABLED": "true",
    "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
    "GF_AUTH_BASIC_ENABLED": "false",
    "GF_AUTH_DISABLE_LOGIN_FORM": "true",
    "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    "GF_PATHS_PROVISIONING": "/etc/grafana/provisioning",
    "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": "/etc/grafana/dashboards/psfleet.json",
}
"""Read-only for anyone who reaches the port, without a login and without requests to the outside."""

Service = dict[str, Any]


def services(fleet: str, outside: str, hardening: Service, source: Callable[[Path], str]) -> dict[str, Service]:
    """The services `prometheus` and `grafana`; none where `FOLDER` is not there.

    Neither has a volume, so their data are removed with their containers.

    Args:
        fleet: Name of the network on which the metrics are.
        outside: Name of the network on which ports are published.
        hardening: Restrictions of every service.
        source: Turns a path of this machine into the source of a bind mount.
    """
    if not FOLDER.is_dir():
        return {}
    return {
        "prometheus": {
            "image": PROMETHEUS_IMAGE,
            "command": [
                "--config.file=/etc/prometheus/prometheus.yml",
                "--storage.tsdb.path=/prometheus",
                "--storage.tsdb.retention.size=256MB",
                f"--web.listen-address=:{PROMETHEUS_PORT}",
            ],
            **_watcher("prometheus", PROMETHEUS_PORT, [fleet, outside], hardening, "/prometheus:mode=1777,size=512m"),
            "volumes": [bind(source(FOLDER / "prometheus.yml"), "/etc/prometheus/prometheus.yml")],
        },
        "grafana": {
            "image": GRAFANA_IMAGE,
            "environment": dict(_GRAFANA_ENVIRONMENT),
            **_watcher("grafana", GRAFANA_PORT, [outside], hardening, "/var/lib/grafana:mode=1777,size=256m"),
            "volumes": [
                bind(source(FOLDER / "grafana" / "provisioning"), "/etc/grafana/provisioning"),
                bind(source(FOLDER / "grafana" / "dashboards"), "/etc/grafana/dashboards"),
            ],
        },
    }


def _watcher(role: str, port: int, networks: list[str], hardening: Service, tmpfs: str) -> Service:
    """The settings that both services share."""
    return {
        "labels": {"psfleet.role": role},
        "profiles": [PROFILE],
        "restart": "unless-stopped",
        "networks": networks,
        "ports": [{"target": port, "published": f"{port}-{port + PORTS_EACH - 1}", "host_ip": "127.0.0.1"}],
        "stop_grace_period": "5s",
        **hardening,
        "tmpfs": [*hardening.get("tmpfs", []), tmpfs],
        "mem_limit": "1g",
        "memswap_limit": "1g",
        "pids_limit": 256,
    }
