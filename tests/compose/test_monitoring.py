"""The profile `monitoring` on a real fleet: a real Prometheus finds every process, and every query has an answer.

The images of the profile cannot be pulled everywhere: the Prometheus is Debian's, in an image built here, under the
options, mounts and limits that the profile gives. What Grafana would ask, the test asks.
"""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.compose_fleet import START_SECS, Fleet, fleet
from support.images import built, docker

from psfleet.errors import DeadlineError
from psfleet.job.job import load_job
from psfleet.manifests.compose import monitoring
from psfleet.manifests.compose.render import project, render
from psfleet.polling import wait_until

IMAGE = """\
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
USER 65534
ENTRYPOINT ["prometheus"]
"""
DASHBOARD = monitoring.FOLDER / "grafana/dashboards/psfleet.json"
RATE_INTERVAL = "20s"
"""What Grafana makes of $__rate_interval at a scrape interval of 5 s."""
SCRAPE_SECS = 60.0
"""Until a change of the fleet is in Prometheus: a look at DNS, two scrapes, and a busy machine."""


@dataclass(frozen=True)
class Watched:
    """A fleet, and the Prometheus that watches it.

    Attributes:
        url: Where this machine reaches it.
    """

    fleet: Fleet
    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What the HTTP API answers: samples with `metric` and `value`."""
        text = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{text}", timeout=10) as reply:
            content = json.load(reply)
        assert content["status"] == "success", content
        assert content["data"]["resultType"] == "vector", expression
        return list(content["data"]["result"])

    def numbers(self, expression: str) -> list[float]:
        """The values alone, without those that are no numbers: 0 / 0 says that nothing happened yet."""
        found = [float(sample["value"][1]) for sample in self.query(expression)]
        return [number for number in found if not math.isnan(number)]

    def wait_for(self, expression: str, least: float, timeout_secs: float = SCRAPE_SECS) -> None:
        """Returns when the largest value of a query is so high."""
        wait_until(
            lambda: max(self.numbers(expression), default=-math.inf),
            timeout_secs,
            f"{expression} to reach {least:g}",
            done=lambda seen: seen >= least,
            poll_secs=0.5,
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's Prometheus."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "Dockerfile").write_text(IMAGE)
    with built(folder) as tag:
        yield tag


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, image: str) -> Iterator[Watched]:
    """A ps, two workers and a spare that train, and Prometheus."""
    folder = tmp_path_factory.mktemp("watched")
    sections: dict[str, Any] = {
        "fleet": {"ps": 1, "workers": 2, "spares": 1},
        "train": {"steps": 1_000_000},
        "checkpoint": {"every_steps": 100},
    }
    with fleet(folder, step_secs=0.02, **sections) as started, up(started, image):
        _, _, port = docker("port", f"{project(started.name)}-prometheus-1", "9090/tcp").stdout.strip().rpartition(":")
        try:
            yield Watched(started, f"http://127.0.0.1:{port}")
        except DeadlineError as error:
            raise AssertionError(f"{error}\n{started.tails()}") from error


@contextmanager
def up(started: Fleet, image: str) -> Iterator[None]:
    """`docker compose up` of the fleet as it is rendered, with another image for Prometheus and without Grafana."""
    content = render(load_job(started.job), started.job)
    content["services"]["prometheus"]["image"] = image
    for name in ("grafana", "tensorboard"):
        del content["services"][name]
    path = started.folder / "compose.yaml"
    path.write_text(yaml.safe_dump(content))
    compose = ("compose", "--file", str(path), "--profile", monitoring.PROFILE)
    docker(*compose, "up", "--detach", timeout_secs=START_SECS)
    try:
        yield
    finally:
        docker(*compose, "down", "--volumes", "--timeout", "2", timeout_secs=START_SECS)


def test_the_configuration_is_valid(image: str) -> None:
    source = monitoring.FOLDER / "prometheus.yml"
    mount = ("--volume", f"{source}:/etc/prometheus/prometheus.yml:ro", "--entrypoint", "promtool")
    done = docker("run", "--rm", *mount, image, "check", "config", "/etc/prometheus/prometheus.yml")
    assert "SUCCESS" in done.stdout + done.stderr


def test_prometheus_finds_every_process_by_the_one_name(watched: Watched) -> None:
    watched.wait_for("count(psfleet_step)", 4, timeout_secs=START_SECS)
    found = watched.query("psfleet_build_info")
    assert sorted((sample["metric"]["role"], sample["metric"]["index"]) for sample in found) == [
        ("chief", "0"), ("ps", "0"), ("spare", "2"), ("worker", "1"),
    ]  # fmt: skip
    assert {sample["metric"]["run"] for sample in found} == {watched.fleet.name}
    assert watched.numbers("up") == [1.0] * 4


def test_the_port_of_prometheus_is_on_loopback_alone(watched: Watched) -> None:
    (container,) = (content for name, content in watched.fleet.containers().items() if name.endswith("-prometheus-1"))
    published = [at for ports in container["NetworkSettings"]["Ports"].values() for at in ports or ()]
    assert {at["HostIp"] for at in published} == {"127.0.0.1"}
    settings = container["HostConfig"]
    assert settings["ReadonlyRootfs"]
    assert settings["CapDrop"] == ["ALL"]


def test_every_query_of_the_dashboard_has_data_once_a_worker_and_a_ps_were_lost(watched: Watched) -> None:
    """The losses are for the row of restarts: before the first there is nothing to show in it."""
    watched.wait_for("psfleet_checkpoint_step", 100, timeout_secs=START_SECS)
    watched.fleet.kill_inside("ps-0")
    watched.wait_for('psfleet_restarts_total{task="ps-0"}', 1, timeout_secs=START_SECS)
    watched.wait_for("min(psfleet_recovery_seconds_count)", 1, timeout_secs=START_SECS)
    watched.wait_for('psfleet_generation{role="ps"}', 2)
    watched.wait_for('min(psfleet_generation{role!="ps"})', 2)
    queries = [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel.get("targets", ())
    ]
    assert len(queries) > 25

    def unanswered() -> list[str]:
        return [query for query in queries if not watched.numbers(asked(query, watched.fleet.name))]

    wait_until(unanswered, SCRAPE_SECS, "an answer to each query", done=lambda left: not left, poll_secs=1.0)


def asked(query: str, run: str) -> str:
    """A query as Grafana sends it."""
    return query.replace("$run", run).replace("$__rate_interval", RATE_INTERVAL)


def test_what_prometheus_has_counted_adds_up(watched: Watched) -> None:
    """An expression whose counters do not match by their labels has no samples, rather than wrong ones."""
    counters = watched.query("psfleet_gradients_pushed_total")
    assert counters
    samples = watched.query(
        "psfleet_gradients_pushed_total - psfleet_gradients_used_total"
        " - psfleet_gradients_dropped_total - psfleet_gradients_pending"
    )
    assert len(samples) == len(counters)
    for sample in samples:
        assert float(sample["value"][1]) == 0, sample
    lost = watched.numbers("psfleet_steps_lost_total")
    assert lost
    assert 0 < lost[0] <= 200, "no more than since the checkpoint before the newest"


def test_the_profile_needs_nothing_of_a_machine_but_its_files() -> None:
    paths = list(Path(monitoring.FOLDER).rglob("*"))
    assert DASHBOARD in paths
    for path in paths:
        assert path.stat().st_mode & 0o004, f"{path}: another user reads it in the container"
