"""Metrics: names, documentation, and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ps_service.metrics import GradientCounter, staleness
from ps_service.shard_graph import Counters
from psfleet.addresses import DATA_PORT
from psfleet.job.job import Job, parse_job
from psfleet.layout import Layout, TensorSpec
from psfleet.service import health, metrics
from psfleet.service.metrics import COMMON_LABELS, METRICS, Distribution, Metric, Times
from psfleet.service.settings import ADDRESS, FAILURE, TLS
from psfleet.tf import STALENESS_BUCKETS
from worker_service import progress
from worker_service.metrics import Payload

DOCUMENT = Path(__file__).parents[4] / "docs" / "monitoring.md"
BASE_UNITS = ("seconds", "bytes")


def row(metric: Metric) -> str:
    """A metric as the documentation's table has it."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = (f"`{metric.exposed_name}`", metric.kind, labels, metric.unit, ", ".join(metric.roles), metric.help)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def test_the_documentation_lists_every_metric_as_the_code_has_it() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `psfleet_")]
    assert rows == [row(metric) for metric in METRICS]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"psfleet_[a-z_]+[a-z]", metric.name)
    assert not metric.name.endswith("_total"), "the library adds it"
    if metric.unit in BASE_UNITS:
        assert metric.name.endswith(f"_{metric.unit}")
    assert not set(metric.labels) & {*COMMON_LABELS, "le", "job", "instance"}


def test_no_two_metrics_share_a_name() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_durations_fall_into_the_bucket_whose_bound_they_do_not_exceed() -> None:
    times = Times((1.0, 2.0))
    for secs in (0.5, 1.0, 1.5, 9.0):
        times.add(secs)
    assert times.read() == Distribution((1.0, 2.0), (2, 1, 1), 12.0)
    assert list(times.read().cumulated()) == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]


def test_staleness_is_grouped_without_losing_a_gradient() -> None:
    counts = np.ones(STALENESS_BUCKETS, np.int64)
    grouped = staleness(counts)
    assert grouped.bounds == metrics.STALENESS_BOUNDS
    assert grouped.counts == [1, 1, 1, 2, 4, 8, 16, 31, 1], "the last entry is open to what is later"
    assert sum(grouped.counts) == STALENESS_BUCKETS
    assert grouped.total == sum(range(STALENESS_BUCKETS))


class Shard:
    """What a counter reads of a shard."""

    def __init__(self) -> None:
        self.generation = 1
        self.is_complete = False

    def read(self, counter: GradientCounter, pushed: int, used: int) -> tuple[float, ...]:
        """pushed, used, dropped and pending of worker 0, once it has pushed and the ps used so many."""
        zeros = np.zeros((1, STALENESS_BUCKETS), np.int64)
        counters = Counters(np.array([pushed]), np.array([used]), zeros, np.zeros(1), np.float64(0))
        read = counter.read(self.generation, self.is_complete, counters, [0])
        readings = {reading.metric: reading.value for reading in read}
        found = [readings[metric] for metric in (metrics.PUSHED, metrics.USED, metrics.DROPPED, metrics.PENDING)]
        return tuple(value for value in found if not isinstance(value, Distribution))


def test_the_newest_gradient_of_a_worker_is_pending_until_it_is_used_or_followed_by_another() -> None:
    shard, counter = Shard(), GradientCounter()
    assert shard.read(counter, 1, 0) == (1, 0, 0, 1)
    assert shard.read(counter, 1, 1) == (1, 1, 0, 0)
    assert shard.read(counter, 2, 1) == (2, 1, 0, 1)
    assert shard.read(counter, 3, 1) == (3, 1, 1, 1), "it would not push the third while the second may be used"


def test_a_gradient_that_was_known_to_be_lost_stays_lost_when_the_next_is_used() -> None:
    shard, counter = Shard(), GradientCounter()
    assert shard.read(counter, 3, 1) == (3, 1, 1, 1)
    assert shard.read(counter, 3, 2) == (3, 2, 1, 0)


def test_what_was_used_while_the_counters_were_read_counts_as_pushed() -> None:
    shard, counter = Shard(), GradientCounter()
    assert shard.read(counter, 3, 1) == (3, 1, 1, 1)
    assert shard.read(counter, 3, 3) == (4, 3, 1, 0)


def test_once_the_target_is_reached_everything_unused_is_lost() -> None:
    shard, counter = Shard(), GradientCounter()
    shard.is_complete = True
    assert shard.read(counter, 9, 7) == (9, 7, 2, 0)


def test_a_new_generation_counts_from_zero() -> None:
    shard, counter = Shard(), GradientCounter()
    assert shard.read(counter, 9, 5) == (9, 5, 3, 1)
    shard.generation = 2
    assert shard.read(counter, 1, 0) == (1, 0, 0, 1)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A clock that stands still: `now.secs`."""
    clock = SimpleNamespace(secs=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.secs)
    return clock


def test_a_recovery_lasts_from_the_first_loss_to_the_end_of_the_next_step(now: SimpleNamespace) -> None:
    measured = progress.TrainingProgress()
    measured.step_done(1, 0.1)
    measured.peer_lost()
    now.secs += 3
    measured.peer_lost()
    now.secs += 2
    measured.session_opened(1)
    measured.step_done(2, 0.1)
    measured.step_done(3, 0.1)
    recovery = measured.recovery_secs.read()
    assert (sum(recovery.counts), recovery.total) == (1, 5.0)


def job(wire: str) -> Job:
    return parse_job(
        {
            "name": "bytes",
            "program": "p:build",
            "fleet": {"ps": 2, "workers": 3},
            "update": {"wire": wire},
            "optimizer": {"name": "sgd", "learning_rate": 1},
            "train": {"steps": 1, "batch_size": 1},
        }
    )


@pytest.mark.parametrize(("wire", "size"), [("float32", 4), ("bfloat16", 2)])
def test_payload_is_buckets_steps_and_averages_for_each_ps_and_the_other_state_of_the_chief(
    wire: str, size: int
) -> None:
    """Two ps; on each 512 parameters, on the first 128 bytes of averages, on the second a counter and a gap."""
    state = [TensorSpec("mean", (16,)), TensorSpec("variance", (16,)), TensorSpec("count", (), "int64")]
    layout = Layout.plan([TensorSpec("w", (1024,))], state, [TensorSpec("f", (16,))], 2, 1 << 20)
    assert (layout.parameters.size, layout.state.size, layout.frozen.size) == (1024, 256, 128)
    push = pull = 1024 * size + 2 * 16 + 128
    assert Payload.of(job(wire), layout, index=1) == Payload(push, pull, attach=384)
    assert Payload.of(job(wire), layout, index=0) == Payload(push + 128, pull, attach=384)


@pytest.mark.parametrize(("address", "port"), [("", DATA_PORT + 1), ("ps-0:2222", 2223), ("127.0.0.1:7000", 7001)])
def test_the_probe_asks_the_port_after_that_of_the_address(address: str, port: int) -> None:
    assert health.control_port(address) == port


def test_the_probe_reads_the_setting_that_services_read() -> None:
    assert (health.ADDRESS, health.TLS, health.FAILURE) == (ADDRESS, TLS, FAILURE)
