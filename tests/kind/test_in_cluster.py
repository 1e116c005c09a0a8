"""`psfleet` in a pod: without a kubeconfig file it has the rights and the namespace of the pod's ServiceAccount."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
import yaml
from support.kind_fleet import START_SECS, Space

from psfleet.report.schema import Report

AS_IN_A_POD = """
mount -t tmpfs none /run &&
mkdir -p /var/run/secrets/kubernetes.io &&
cp -r account /var/run/secrets/kubernetes.io/serviceaccount &&
exec "$@"
"""
"""Runs a command where the kubelet would have mounted the account, in a mount namespace of its own."""


def environment(space: Space) -> dict[str, str]:
    """Writes the files of the account of psfleet's user; the variables of a pod."""
    content = yaml.safe_load(space.user.read_text())
    cluster = content["clusters"][0]["cluster"]
    account = space.folder / "account"
    account.mkdir()
    (account / "token").write_text(content["users"][0]["user"]["token"])
    (account / "namespace").write_text(space.name)
    (account / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    server = urlsplit(cluster["server"])
    of_pod = {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
    plain = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return {**plain, **of_pod, "HOME": str(space.folder)}


@pytest.mark.timeout(START_SECS * 2)
def test_a_job_is_trained_from_a_pod_by_its_account(space: Space) -> None:
    job = space.job_file("inside", fleet={"ps": 1, "workers": 1}, train={"steps": 3, "batch_size": 1})
    command = [sys.executable, "-m", "psfleet", "up", job, "--on", "kubernetes"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", AS_IN_A_POD, "sh", *command], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=START_SECS, env=environment(space), cwd=space.folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = Report.read(space.folder / "runs" / "inside")
    assert (report.status, report.final_step) == ("done", 3)
