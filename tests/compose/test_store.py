"""Checkpoints in an object store on docker compose: ps and chief reach it, and a fresh volume resumes from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from support.compose_fleet import COMMAND_SECS, START_SECS, Fleet, fleet
from support.images import docker
from support.s3_server import DENIED, GONE, S3Server, assert_not_stored, no_fault, saved_step

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store import newest
from psfleet.errors import BAD_JOB, USAGE
from psfleet.report.schema import Report

STEPS = 1000
"""At the pace below far more than all that is done to the run takes."""
PACE_SECS = 0.2
EVERY_STEPS = 5
SECRET = "secret-of-the-tester"
STORE = "s3://fleet/run"
FAILED = "checkpoint_failed"
NOWHERE = "http://192.0.2.1"
"""An address for documentation (RFC 5737)."""
SECTIONS: dict[str, Any] = {
    "tls": True,
    "train": {"steps": STEPS},
    "fleet": {"ps": 2, "workers": 2},
    "checkpoint": {"every_steps": EVERY_STEPS, "keep": 2, "store": STORE},
}

pytestmark = [pytest.mark.timeout(600)]


@dataclass
class Killed:
    """What was seen of a fleet until it was killed.

    Attributes:
        step: Of its newest checkpoint.
        without_bucket: The step of the newest checkpoint before the time without a bucket, and after it.
        logs: Of all containers.
        knowing: The services of the containers whose description has the secret.
    """

    step: int
    without_bucket: tuple[int, int]
    logs: str
    knowing: set[str]


def test_a_killed_fleet_is_resumed_on_a_fresh_volume_from_the_store(s3: S3Server, tmp_path: Path) -> None:
    with fleet(tmp_path / "job", PACE_SECS, **SECTIONS) as seen:
        killed = _train_and_kill(s3, seen)
        assert killed.without_bucket[0] <= killed.without_bucket[1], "nothing is lost where nothing can be written"
        assert killed.knowing == {"ps-0", "ps-1", "chief"}
        assert SECRET not in killed.logs
        assert seen.left() == {}, "the volume is removed"
        seen.hurry()
        # Steps are faster than the server of this process, which each of their checkpoints would wait for.
        seen.up("--set", f"checkpoint.every_steps={STEPS // 5}")
        assert seen.end(START_SECS + COMMAND_SECS) == 0, seen.screen.read_text()
        report = seen.report()
        assert report.checkpoint is not None
        assert report.checkpoint.path.startswith(f"{STORE}/checkpoints/{STEPS:08d}-g")
        assert report.attempts[-1].first_step >= killed.step
        assert not (seen.out / "checkpoints").exists()
        _assert_readable(seen, report)
        assert_not_stored(SECRET, seen.folder)


def test_refused_credentials_end_the_run_in_one_line(s3: S3Server, tmp_path: Path) -> None:
    s3.fault = lambda method, path: DENIED
    with fleet(tmp_path / "job", PACE_SECS, **SECTIONS) as seen:
        seen.up()
        assert seen.end(START_SECS) == BAD_JOB, seen.screen.read_text()
        screen = seen.screen.read_text()
        named = [line for line in screen.splitlines() if f"checkpoint.store: {STORE}/checkpoints" in line]
        assert named, screen
        assert all("InvalidAccessKeyId" in line and "expected a bucket that exists" in line for line in named)
        assert "Traceback" not in screen
        assert SECRET not in screen


def test_a_store_at_localhost_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    with fleet(tmp_path / "job", **SECTIONS) as seen:
        said = seen.run("up", str(seen.job), code=USAGE)
        assert "AWS_ENDPOINT_URL has http://localhost:9000, which in a container is the container itself" in said
        assert len(said.splitlines()) == 1, said
        assert seen.left() == {}


def test_a_web_identity_and_a_proxy_of_the_environment_lead_to_the_store(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers as the proxy of an address that leads nowhere, and exchanges the token for credentials."""
    token = tmp_path / "token"
    token.write_text("token-of-the-tester")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/trainer")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOWHERE)
    monkeypatch.setenv("HTTP_PROXY", s3.url)
    checkpoint = {**SECTIONS["checkpoint"], "store": f"{STORE}-of-identity"}
    with fleet(tmp_path / "job", **{**SECTIONS, "train": {"steps": EVERY_STEPS}, "checkpoint": checkpoint}) as seen:
        seen.up()
        assert seen.end(START_SECS) == 0, seen.screen.read_text()
        report = seen.report()
        assert report.checkpoint is not None
        assert report.checkpoint.path.startswith(f"{checkpoint['store']}/checkpoints/{EVERY_STEPS:08d}-g")
        assert s3.requests.count(("POST", "/?")) >= 3, "each of two ps and the chief has got credentials"


def _train_and_kill(s3: S3Server, seen: Fleet) -> Killed:
    """Trains to a checkpoint, through a time without a bucket to another one, and kills every container."""
    seen.up()
    seen.wait_for(lambda: saved_step(STORE) >= EVERY_STEPS, START_SECS, "a checkpoint in the store")
    before = _whole()
    s3.fault = lambda method, path: GONE
    seen.wait_for(lambda: _failures(seen), START_SECS, "the event of a checkpoint that cannot be written")
    failed_at = seen.step()
    seen.wait_for_step(failed_at + 2 * EVERY_STEPS)
    s3.fault = lambda method, path: None if method in ("GET", "HEAD") else GONE
    after = _whole()
    s3.fault = no_fault
    seen.wait_for(lambda: saved_step(STORE) > failed_at, START_SECS, "a checkpoint after the bucket is back")
    seen.leave()
    described = {name: json.dumps(item) for name, item in seen.containers().items()}
    services = ("ps-0", "ps-1", "chief", "worker")
    step, logs = saved_step(STORE), "".join(docker("logs", seen.container(service)).stdout for service in services)
    docker("kill", *(seen.container(service) for service in services))
    seen.run("down", seen.name, "--results")
    knowing = {service for service in services if SECRET in described[seen.container(service)]}
    return Killed(step, (before, after), logs, knowing)


def _whole() -> int:
    """The step of the newest checkpoint in the store that is whole."""
    found = newest(StoreFolder(f"{STORE}/checkpoints"))
    assert found is not None
    return found.step


def _failures(seen: Fleet) -> list[dict[str, Any]]:
    return [entry for entry in seen.entries(FAILED) if "bucket fleet does not exist" in entry["message"]]


def _assert_readable(seen: Fleet, report: Report) -> None:
    """The store's URL is enough for `psfleet weights` and `report`, and for `Report.read`, on another machine."""
    stored = Report.read(STORE)
    assert (stored.status, stored.final_step, stored.name) == ("done", STEPS, report.name)
    assert f"steps:           {STEPS} of {STEPS}" in seen.run("report", STORE)
    out = seen.folder / "weights.safetensors"
    seen.run("weights", STORE, "--out", str(out))
    assert set(safetensors.numpy.load_file(out)) == {"w1", "b1", "w2", "b2"}
