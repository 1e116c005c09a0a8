"""Fleet files: what they say, and what they refuse because a standing fleet does not read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.errors import BadJobError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import load_fleet


def test_a_fleet_file_needs_a_name_only(tmp_path: Path) -> None:
    fleet = load_fleet(written(tmp_path, "name: lab"))
    assert (fleet.fleet.ps, fleet.fleet.workers) == (1, 0)


def test_a_fleet_file_has_the_sections_about_where(tmp_path: Path) -> None:
    text = """
name: lab
fleet: {ps: 2, workers: 3}
device: {intra_op_threads: 2}
deadlines: {start_secs: 10, step_secs: 1e1, stall_secs: 20, stop_secs: 5}
container: {worker_image: mine, ps: {memory: 4Gi}}
tls: true
"""
    fleet = load_fleet(written(tmp_path, text))
    assert (fleet.fleet.workers, fleet.device.intra_op_threads, fleet.deadlines.step_secs) == (3, 2, 10.0)
    assert (fleet.container.ps.memory, fleet.container.worker.memory, fleet.tls) == ("4Gi", "2Gi", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: lab\nfleet: {ps: 1, spares: 2}", r"fleet\.yaml: fleet\.spares: unknown key$"),
        ("name: lab\nfleet: {p: 1}", r"fleet\.p: unknown key; did you mean ps\?"),
        ("name: lab\ntrain: {steps: 1}", "train: unknown key$"),
        ("name: lab\ndeadlines: {slow_secs: 5}", r"deadlines\.slow_secs: unknown key; did you mean \w+\?"),
        ("name: lab\ncontainer: {memory: 1Gi}", r"container\.memory: unknown key"),
        ("name: lab\ncontainer: {program: image}", r"container\.program: unknown key"),
        ("name: lab\nkubernetes: {job_labels: {a: b}}", r"kubernetes\.job_labels: unknown key"),
        ("name: lab\nkubernetes: {worker: {egress: []}}", r"kubernetes\.worker\.egress: unknown key; did you mean"),
        (
            "name: lab\nkubernetes: {secret_files: ['s:/program/x']}",
            "secret_files has /program/x, which has other files",
        ),
        ("name: My_Lab", "name is 'My_Lab': String should match pattern"),
        ("fleet: {ps: 1}", "name: missing, expected a value"),
        ("name: lab\nfleet: {ps: 0}", r"fleet\.ps is 0: Input should be greater than or equal to 1"),
        (
            "name: lab\nfleet: {workers: 1}\ndevice: {visible_gpus: {worker: [[0], [1]]}}",
            r"device\.visible_gpus\.worker has 2 lists, expected at most one for each worker: fleet\.workers = 1",
        ),
        ("name: lab\ndevice: {replicas: auto}", r"device\.replicas is auto, expected 1 in a fleet file"),
        ("- lab", "holds list, expected a mapping of fields"),
        ("name: [", "is not YAML"),
    ],
)
def test_what_a_fleet_does_not_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadJobError, match=message):
        load_fleet(written(tmp_path, text))


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fleet file .*fleet\.yaml: No such file"):
        load_fleet(tmp_path / "fleet.yaml")


def test_the_access_to_a_fleet_is_the_same_after_json() -> None:
    access = FleetAccess(name="lab", id="lab-1", version="1", ps=["h:1"], workers=["h:3"])
    assert FleetAccess.from_json(access.model_dump_json(), "there") == access
    with pytest.raises(BadJobError, match="there: expected the access to a standing fleet as JSON"):
        FleetAccess.from_json("{}", "there")


def written(folder: Path, text: str) -> Path:
    """A fleet file with this text."""
    path = folder / "fleet.yaml"
    path.write_text(text)
    return path
