"""Metrics of real processes: equal to the report, and never falling."""

from __future__ import annotations

import shutil
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.control_calls import beat, join
from support.local_fleet import PROGRAM, Gates
from support.service_process import START_SECS, Service, running

from psfleet import errors
from psfleet.addresses import Address
from psfleet.control.client import PsClient
from psfleet.errors import LostPeerError
from psfleet.job.job import Job, parse_job
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.report.schema import Report
from psfleet.service.metrics import METRICS, PREFIX, RESTARTS

RUN = "measured-1"
SCRAPE_SECS = 0.2
"""Between two looks at all processes: a chief that has ended its run stays for 2 s."""
TRAIN_SECS = 2 * START_SECS
"""Until four processes that start at once train."""
COUNTED = ("pushed", "used", "dropped")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""By name and labels."""


@dataclass(frozen=True)
class TaskAddresses:
    """Where one process of the fleet is, and its metrics are."""

    role: str
    index: int
    address: Address
    metrics: Address

    def scrape(self) -> Samples:
        """All samples; empty where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics.data}/metrics", timeout=5) as reply:
                text = reply.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {}
        families = text_string_to_metric_families(text)
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@dataclass(frozen=True)
class Fleet:
    """One run of processes that nobody starts again."""

    job: Job
    folder: Path
    gates: Gates
    places: Mapping[str, TaskAddresses]
    services: dict[str, Service]

    def start(self, stack: ExitStack, name: str) -> None:
        """Starts the process of a place, or starts it again."""
        place = self.places[name]
        variables = {
            "JOB": str(self.folder / "job.json"),
            "PROGRAM_FOLDER": str(self.folder),
            "RUN": RUN,
            "PS": self.places["ps-0"].address.data,
            "INDEX": str(place.index),
            "METRICS_PORT": str(place.metrics.port),
        }
        self.services[name] = stack.enter_context(running(place.role, self.folder, place.address, **variables))

    def value(self, name: str, metric: str, **labels: str) -> float | None:
        """One sample of one process; None if the process does not have it."""
        return value(self.places[name].scrape(), metric, **labels)

    def wait_for(self, name: str, metric: str, least: float, **labels: str) -> None:
        """Returns when a sample is at least so high."""
        what = f"{metric} of {name} to reach {least:g}"
        wait_until(lambda: self.value(name, metric, **labels), TRAIN_SECS, what, done=lambda seen: (seen or 0) >= least)


@contextmanager
def fleet(folder: Path, stack: ExitStack, spares: int, **sections: Any) -> Iterator[Fleet]:
    """A ps, two workers and spares, each with a metrics port."""
    gates = Gates(folder / "gates")
    gates.folder.mkdir()
    (gates.folder / "pace").touch()
    shutil.copy(PROGRAM, folder)
    job = parse_job(
        {
            "name": "measured",
            "program": "paced_program:build",
            "options": {"gates": str(gates.folder), "step_secs": 0.01},
            "fleet": {"ps": 1, "workers": 2, "spares": spares},
            "optimizer": {"name": "adam", "learning_rate": 0.01},
            "device": {"intra_op_threads": 1},
            **sections,
        }
    )
    (folder / "job.json").write_text(job.model_dump_json())
    names = [("ps", 0), *[("worker", index) for index in range(job.fleet.replicas)]]
    free = iter(free_addresses(2 * len(names)))
    places = {f"{role}-{index}": TaskAddresses(role, index, next(free), next(free)) for role, index in names}
    found = Fleet(job, folder, gates, places, {})
    for name in places:
        found.start(stack, name)
    yield found


def value(samples: Samples, metric: str, **labels: str) -> float | None:
    """The one sample of a metric with these labels among others; None if there is none."""
    wanted = set(labels.items())
    found = [seen for (name, own), seen in samples.items() if name == PREFIX + metric and wanted <= own]
    assert len(found) <= 1, f"{len(found)} samples of {metric} with {labels}"
    return found[0] if found else None


def by_worker(samples: Samples, what: str) -> dict[str, float]:
    """A ps's counter of gradients by worker index."""
    name = f"{PREFIX}gradients_{what}"
    return {dict(labels)["worker"]: seen for (own, labels), seen in samples.items() if own == name}


def names_in(samples: Samples) -> set[str]:
    """Names of psfleet's own metrics, without what a histogram has behind its name."""
    names = {name for name, _ in samples if name.startswith(PREFIX)}
    ends = ("_bucket", "_sum", "_count")
    return {next((name.removesuffix(end) for end in ends if name.endswith(end)), name) for name in names}


@pytest.mark.extended
def test_the_counters_of_a_run_equal_its_report_and_never_fall(tmp_path: Path) -> None:
    """A made-up worker that never leaves its session keeps the ps until the last counts can be read."""
    sections = {"train": {"steps": 75, "batch_size": 1, "seed": 7}, "checkpoint": {"every_steps": 25}}
    with ExitStack() as stack, fleet(tmp_path, stack, spares=1, **sections) as measured:
        stayer = PsClient(measured.places["ps-0"].address, RUN)
        stack.callback(stayer.close)
        wait_until(lambda: joined(stayer, index=5, worker_limit=6), START_SECS, "ps-0 to admit the made-up worker")
        measured.wait_for("ps-0", "step", 1)
        seen: dict[str, list[Samples]] = {name: [] for name in measured.places}
        chief = measured.services["worker-0"].process
        pause = threading.Event()
        while chief.poll() is None:
            pause.wait(SCRAPE_SECS)
            for name, place in measured.places.items():
                seen[name].append(place.scrape())
            beat(stayer, step=75, generation=1)
        assert chief.returncode == errors.DONE
    found = {name: [samples for samples in scrapes if samples] for name, scrapes in seen.items()}
    report = Report.read(tmp_path)
    last = found["ps-0"][-1]
    gradients = report.gradients
    assert gradients.dropped > 0, "three push, two are used"
    assert [sum(by_worker(last, f"{what}_total").values()) for what in COUNTED] == [
        gradients.pushed, gradients.used, gradients.dropped,
    ]  # fmt: skip
    assert {index: (own.pushed, own.used) for index, own in gradients.per_worker.items()} == {
        index: (pushed, by_worker(last, "used_total")[index])
        for index, pushed in by_worker(last, "pushed_total").items()
    }
    assert set(by_worker(last, "pending").values()) == {0}
    staleness = sum(report.staleness.values())
    assert value(last, "gradient_staleness_steps_count") == staleness
    assert value(last, "updates_total") == report.final_step == 75
    for samples in found["ps-0"]:
        for worker, pushed in by_worker(samples, "pushed_total").items():
            parts = [by_worker(samples, what)[worker] for what in ("used_total", "dropped_total", "pending")]
            assert pushed == sum(parts)
            assert min(parts) >= 0
    for scrapes in found.values():
        assert_never_falling(scrapes)
    for name, role in (("ps-0", "ps"), ("worker-0", "chief"), ("worker-1", "worker"), ("worker-2", "spare")):
        expected = {metric.exposed_name for metric in METRICS if role in metric.roles and metric is not RESTARTS}
        assert names_in(found[name][-1]) == expected


def joined(client: PsClient, **request: Any) -> tuple[int, int] | None:
    """What a worker gets from a ps; None until the ps answers."""
    with suppress(LostPeerError):
        return join(client, "stayer", **request)
    return None


def assert_never_falling(scrapes: list[Samples]) -> None:
    """Every counter, and every part of a histogram."""
    rising = ("_total", "_bucket", "_sum", "_count")
    for before, after in pairwise(scrapes):
        fallen = {key: (old, after[key]) for key, old in before.items() if key in after and after[key] < old}
        assert not {key: values for key, values in fallen.items() if key[0].endswith(rising)}


@pytest.mark.extended
def test_waiting_shows_at_the_barrier_of_the_others_and_a_lost_ps_as_a_restart_and_a_recovery(tmp_path: Path) -> None:
    sections = {"train": {"steps": 100_000, "batch_size": 1, "seed": 7}, "checkpoint": {"every_steps": 50}}
    with ExitStack() as stack, fleet(tmp_path, stack, spares=0, **sections) as measured:
        measured.wait_for("ps-0", "step", 20)
        check_waiting(measured)
        measured.wait_for("worker-0", "checkpoint_step", 50)
        measured.wait_for("worker-0", "step", 75)
        age = measured.value("worker-0", "checkpoint_age_seconds")
        assert age is not None
        assert 0 <= age < START_SECS
        measured.services["ps-0"].process.send_signal(signal.SIGKILL)
        measured.services["ps-0"].process.wait()
        measured.start(stack, "ps-0")
        check_recovery(measured)


def check_waiting(measured: Fleet) -> None:
    """Holds the data of worker 1: worker 0 waits at the barrier."""
    before = [waited(measured, worker) for worker in "01"]
    measured.gates.hold(1)
    measured.wait_for("ps-0", "waiting_seconds", 2)
    measured.gates.release(1)
    # The ps publishes its counters some time after the step.
    measured.wait_for("ps-0", "token_wait_seconds_total", before[0] + 2, worker="0")
    assert waited(measured, "1") - before[1] < 1


def check_recovery(measured: Fleet) -> None:
    """Both workers show one recovery, and the chief the restart of the ps and the steps that it cost."""
    for name in ("worker-0", "worker-1"):
        measured.wait_for(name, "recovery_seconds_count", 1)
        assert measured.value(name, "recovery_seconds_count") == 1
        assert measured.value(name, "generation") == 2
        assert 0 < (measured.value(name, "recovery_seconds_sum") or 0) < START_SECS
    assert measured.value("worker-0", "restarts_total", task="ps-0") == 1
    assert (measured.value("worker-0", "steps_lost_total") or 0) > 0


def waited(measured: Fleet, worker: str) -> float:
    """Seconds at the barrier of one worker."""
    seen = measured.value("ps-0", "token_wait_seconds_total", worker=worker)
    assert seen is not None
    return seen


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_a_taken_metrics_port_is_named_and_can_be_tried_again(role: str, tmp_path: Path) -> None:
    ps, own, taken = free_addresses(3)
    job = {"name": "taken", "program": "p:build", "optimizer": {"name": "sgd", "learning_rate": 1}}
    (tmp_path / "job.json").write_text(parse_job(job | {"train": {"steps": 1, "batch_size": 1}}).model_dump_json())
    with running("ps", tmp_path, ps, METRICS_PORT=str(taken.port)) as first:
        first.serving()
        variables = {"RUN": RUN, "PS": ps.data, "INDEX": "0", "JOB": str(tmp_path / "job.json")}
        with running(role, tmp_path, own, METRICS_PORT=str(taken.port), **variables) as second:
            assert second.exit_code(START_SECS) == errors.LOST_PEERS
            (failure,) = second.failures()
    assert failure["message"] == (
        f"metrics port {taken.port} of 127.0.0.1 is not available (Address already in use), expected a free port"
    )


def test_a_ps_without_a_run_exposes_its_version_and_no_metric_of_a_run(tmp_path: Path) -> None:
    address, port = free_addresses(2)
    with running("ps", tmp_path, address, METRICS_PORT=str(port.port)) as service:
        service.serving()
        place = TaskAddresses("ps", 0, address, port)
        samples = wait_until(place.scrape, START_SECS, "the first metrics")
        assert names_in(samples) == {"psfleet_build_info"}
        assert {name for name, _ in samples} >= {"process_resident_memory_bytes", "process_cpu_seconds_total"}
