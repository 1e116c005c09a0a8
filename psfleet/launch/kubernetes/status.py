"""What `psfleet status` shows of fleets in Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psfleet.launch.follow import TABLE_LINES, newest_table
from psfleet.launch.kubernetes.api import Cluster
from psfleet.launch.kubernetes.members import OUT_OF_MEMORY, Pod, job_of, newest, verdict
from psfleet.launch.kubernetes.names import INSTANCE, PS, WORKER, member
from psfleet.launch.platform import TaskStatus

Row = Mapping[str, Any]


def statuses(cluster: Cluster, jobs: Sequence[Any], found: Sequence[Pod]) -> list[TaskStatus]:
    """A row for each place in each fleet, by fleet; a place without a pod, too."""
    rows = []
    for name in sorted({job.metadata.labels[INSTANCE] for job in jobs}):
        own = [pod for pod in found if pod.fleet == name]
        table = table_of(cluster, own)
        for component in (PS, WORKER):
            job = job_of(jobs, name, component)
            for index in range(job.spec.completions if job is not None else 0):
                rows.append(_status(name, component, index, job, own, table))
    return rows


def table_of(cluster: Cluster, found: Sequence[Pod]) -> Row:
    """The newest table of a fleet that its chief logged; empty if there is none."""
    chief = newest(found, WORKER, 0)
    if chief is None or not chief.has_log:
        return {}
    return newest_table(cluster.log(chief.name, tail=TABLE_LINES))


def _status(name: str, component: str, index: int, job: Any, found: Sequence[Pod], table: Row) -> TaskStatus:
    pod = newest(found, component, index)
    rows = table.get("ps" if component == PS else "workers", ())
    row: Row = next((row for row in rows if row["index"] == index), {})
    role = PS if component == PS else row.get("role", "chief" if index == 0 else WORKER)
    is_running = pod is not None and pod.state() == "running"
    return TaskStatus(
        fleet=name,
        role=role,
        index=index,
        name=pod.name if pod is not None else member(name, component),
        state=_state(job, pod),
        health=pod.health() if pod is not None else "",
        step=row.get("step"),
        rate=row.get("rate") if is_running else None,
        restarts=max(pod.failures_before if pod is not None else 0, row.get("restarts", 0)),
        last_event=_last_event(job, pod, found, component, index) or row.get("last_event", ""),
    )


def _state(job: Any, pod: Pod | None) -> str:
    if job.spec.suspend and (pod is None or pod.is_over):
        return "suspended"
    if pod is not None:
        return pod.state()
    ended = verdict(job)
    # Pods of workers that are not needed any more are removed with the success of the chief.
    return "waiting" if ended is None else "removed"


def _last_event(job: Any, pod: Pod | None, found: Sequence[Pod], component: str, index: int) -> str:
    if job.spec.suspend:
        return "the Job is suspended"
    if pod is not None and (pod.problem() or pod.cause()):
        return pod.problem() or pod.cause()
    # One of an earlier pod, as long as it is kept.
    before = [each for each in found if (each.component, each.index) == (component, index) and each is not pod]
    failures = [each.cause() for each in before if each.cause()]
    if failures and failures[-1].startswith(OUT_OF_MEMORY):
        return failures[-1]
    ended = verdict(job)
    return f"{ended.reason}: {ended.message}" if ended is not None and ended.type == "Failed" else ""
