"""Checkpoints in an object store on a real cluster: pods reach it, and a fleet without its claim resumes from it."""

from __future__ import annotations

import signal

import pytest
from support.admission import admission
from support.kind_fleet import COMMAND_SECS, START_SECS, Object, Space
from support.kind_store import make_secret, section
from support.s3_server import S3Server, environment, saved_step

from psfleet.checkpoint.store_lease import LEASE_SECS
from psfleet.cli.fleets import INTERRUPTED
from psfleet.polling import wait_until
from psfleet.report.schema import Report

STEPS = 60
STORE = "s3://fleet/run"
IDENTITY = "/var/run/secrets/identity"
TOKEN = {"serviceAccountToken": {"audience": "sts.amazonaws.com", "expirationSeconds": 3600, "path": "token"}}
WEB_IDENTITY: list[Object] = [
    {"op": "add", "path": "/spec/volumes/-", "value": {"name": "identity", "projected": {"sources": [TOKEN]}}},
    {
        "op": "add",
        "path": "/spec/containers/0/volumeMounts/-",
        "value": {"name": "identity", "mountPath": IDENTITY, "readOnly": True},
    },
    *(
        {"op": "add", "path": "/spec/containers/0/env/-", "value": {"name": name, "value": value}}
        for name, value in {
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/trainer",
            "AWS_WEB_IDENTITY_TOKEN_FILE": f"{IDENTITY}/token",
        }.items()
    ),
]


@pytest.mark.timeout(START_SECS * 4)
def test_a_fleet_is_resumed_from_the_store_without_its_claim(space: Space, s3: S3Server) -> None:
    make_secret(space, s3)
    job = space.job_file(
        "stored", {"step_secs": 0.5}, fleet={"ps": 2, "workers": 2}, kubernetes=section(s3),
        train={"steps": STEPS, "batch_size": 1}, checkpoint={"every_steps": 5, "keep": 2, "store": STORE},
    )  # fmt: skip
    up = space.start("up", job)
    step = wait_until(lambda: saved_step(STORE), START_SECS, "a checkpoint in the store", poll_secs=1)
    up.send_signal(signal.SIGINT)
    assert up.wait(COMMAND_SECS) == INTERRUPTED
    for pod in space.pods("ps"):
        assert [each for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each] == []
    space.kubectl("delete", "jobs", "--all", "--cascade=orphan")
    space.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
    space.psfleet("down", "stored", "--results", code=None)
    assert space.get("pvc")["items"] == []

    out = space.folder / "out"
    space.psfleet("up", job, "--out", str(out), secs=START_SECS + LEASE_SECS)
    report = Report.read(out)
    assert (report.status, report.final_step) == ("done", STEPS)
    assert report.checkpoint is not None
    assert report.checkpoint.path.startswith(f"{STORE}/checkpoints/{STEPS:08d}-g")
    assert (report.attempts[-1].first_step or 0) >= step
    assert environment(s3)["AWS_SECRET_ACCESS_KEY"] not in space.kubectl("get", "jobs,configmaps,pods", "-o", "yaml")
    space.psfleet("down", "stored", "--results", secs=180)


@pytest.mark.timeout(START_SECS * 2)
def test_a_web_identity_that_the_cluster_injects_leads_to_the_store(space: Space, s3: S3Server) -> None:
    """As the webhooks of cloud providers inject it into pods of a ServiceAccount."""
    out = section(s3)
    del out["secret_env"]
    job = space.job_file(
        "identified", fleet={"ps": 1, "workers": 1}, train={"steps": 5, "batch_size": 1}, kubernetes=out,
        checkpoint={"store": f"{STORE}-of-identity"},
    )  # fmt: skip
    with admission(space, {"Pod": WEB_IDENTITY}, of_jobs=True):
        space.psfleet("up", job, secs=START_SECS)
    report = Report.read(space.folder / "runs" / "identified")
    assert report.checkpoint is not None
    assert report.checkpoint.path.startswith(f"{STORE}-of-identity/checkpoints/{5:08d}-g")
    assert s3.requests.count(("POST", "/?")) >= 2, "the ps and the chief have exchanged their tokens for credentials"
