"""Copies what a fleet left out of its volume: a pod that only reads it packs it into a stream of the API."""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.errors import DeadlineError, LostPeerError
from psfleet.job.container import Limits
from psfleet.job.job import Job
from psfleet.launch import container
from psfleet.launch.chunks import Chunks
from psfleet.launch.kubernetes.api import Cluster, answered
from psfleet.launch.kubernetes.exec import execution
from psfleet.launch.kubernetes.members import Pod, newest, verdict
from psfleet.launch.kubernetes.names import PS, RESULTS, WORKER, labels
from psfleet.launch.kubernetes.pods import container_security, pod_security, resources, together
from psfleet.launch.proof import ALWAYS, OF_THIS_START, checked, first_failure, unreported
from psfleet.polling import wait_until
from psfleet.report import html
from psfleet.report.schema import Report
from psfleet.run_folder import RunFolder

PACK = ("tar", "-C", container.OUT, "--exclude=./lost+found", "--exclude=./.*", "-cf", "-", ".")
READER_SECS = 3600
"""After which a reader ends by itself, whatever became of who made it."""


def collect(cluster: Cluster, jobs: Sequence[Any], found: Sequence[Pod], job: Job, folder: RunFolder) -> Report:
    """Copies results and logs into a run folder, and publishes the report there.

    Returns:
        The chief's report, its checkpoint's path that of the copy; one that says why there is none, or why it is wrong.
    """
    workers = next(each for each in jobs if each.metadata.name == f"{job.name}-{WORKER}")
    for pod in found:
        if pod.has_log:
            with folder.log(pod.component, pod.index).open("a") as file:
                file.writelines(f"{line}\n" for line in cluster.log(pod.name))
    with _reader(cluster, job) as pod_name:
        _copy(cluster, pod_name, folder.path, workers.metadata.creation_timestamp.timestamp())
    has_succeeded = (ended := verdict(workers)) is not None and ended.type == "Complete"
    report = Report.read(folder.path) if (folder.path / Report.FILE_NAME).exists() else None
    if report is None or (report.exit_code == errors.DONE) != has_succeeded:
        report = unreported(job, folder, *_cause(jobs, found, folder))
    report = checked(report, folder)
    html.publish(report, folder.path)
    return report


@contextmanager
def _reader(cluster: Cluster, job: Job) -> Iterator[str]:
    """A pod that mounts the volume, and is removed with the block."""
    name = f"{job.name}-{RESULTS}-{secrets.token_hex(3)}"
    cluster.apply([_reader_pod(job, name)])

    def look() -> Pod:
        with answered(f"read pod {name}"):
            return Pod(cluster.core.read_namespaced_pod(name, cluster.namespace))

    try:
        seen: list[str] = []

        def is_settled() -> bool:
            pod = look()
            seen[:] = [pod.problem() or pod.state()]
            return pod.state() == "running"

        try:
            wait_until(is_settled, job.deadlines.start_secs, f"pod {name}, which copies the results", poll_secs=0.5)
        except DeadlineError as error:
            raise DeadlineError(error.what, error.timeout_secs, seen[0]) from error
        yield name
    finally:
        cluster.delete_pod(name)


def _reader_pod(job: Job, name: str) -> dict[str, Any]:
    """It belongs to the fleet, so the fleet's policy lets nothing in or out."""
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": READER_SECS,
        "terminationGracePeriodSeconds": 1,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": RESULTS,
                "image": job.container.ps_image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/usr/bin/tini", "--", "sleep", str(READER_SECS)],
                "resources": resources(Limits(memory="256Mi")),
                "securityContext": container_security(),
                "volumeMounts": [{"name": "results", "mountPath": container.OUT, "readOnly": True}],
            }
        ],
        "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": job.name, "readOnly": True}}],
    }
    if job.container.access_mode == "ReadWriteOnce":
        spec["affinity"] = together(job.name)
    meta = {"name": name, "labels": labels(job.name, RESULTS)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _copy(cluster: Cluster, pod: str, folder: Path, started: float) -> None:
    """Unpacks what the reader packs; files that tell of one start only if they are of this one."""
    with execution(cluster, pod, PACK) as output:
        try:
            with tarfile.open(fileobj=io.BufferedReader(Chunks(output.chunks())), mode="r|") as archive:
                for entry in archive:
                    top = Path(entry.name).parts[:1]
                    if top and (top[0] in ALWAYS or (top[0] in OF_THIS_START and entry.mtime >= started)):
                        archive.extract(entry, folder, filter="data")
        except tarfile.TarError as error:
            raise LostPeerError(f"the copy of the results broke off: {error}; {output.problem()}") from error
        if output.problem():
            raise LostPeerError(f"the results could not be copied: {output.problem()}")


def _cause(jobs: Sequence[Any], found: Sequence[Pod], folder: RunFolder) -> tuple[int, str]:
    """Exit code and message of a run without a report: the first process that failed for good, or the Job's verdict."""
    chief = newest(found, WORKER, 0)
    codes = [pod.exit_code for pod in found if pod.exit_code in errors.PERMANENT_CODES]
    code = codes[0] if codes else chief.exit_code if chief is not None else None
    if code and (told := first_failure(folder, code)) is not None:
        return code, told
    failed = next((pod for pod in found if pod.cause() and pod.exit_code == code), None)
    if code and failed is not None:
        killed = code > errors.SIGNAL_BASE
        return errors.LOST_PEERS if killed else code, f"pod {failed.name}: {failed.cause()}"
    for component in (WORKER, PS):
        ended = next((v for job in jobs if job.metadata.name.endswith(component) and (v := verdict(job))), None)
        if ended is not None and ended.type == "Failed":
            return errors.LOST_PEERS, f"Job {component}: {ended.reason}: {ended.message}"
    return errors.BUG, "the chief left no report"
