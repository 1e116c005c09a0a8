"""Pods and Jobs of a fleet named `small`, as the API shows them."""

from __future__ import annotations

import json
from typing import Any

from kubernetes import client

from psfleet.platforms.kubernetes.pods import Pod

LABELS = {
    "app.kubernetes.io/part-of": "psfleet",
    "app.kubernetes.io/instance": "small",
    "app.kubernetes.io/component": "worker",
    "batch.kubernetes.io/job-completion-index": "0",
}
CREATED = "2026-01-01T00:00:00Z"


def read(content: dict[str, Any], kind: str) -> Any:
    """An object of the `kubernetes` package, from its JSON."""
    return client.ApiClient().deserialize(json.dumps(content), kind, "application/json")


def pod(
    state: dict[str, Any] | None = None,
    phase: str = "Running",
    component: str = "worker",
    index: int = 0,
    notes: dict[str, str] | None = None,
    **status: Any,
) -> Pod:
    """A pod whose process is in a state; of worker 1, if nothing else is said.

    Args:
        index: Completion index in the Job of the component.
    """
    name = {"name": f"small-{component}-{index}-x", "uid": "u", "creationTimestamp": CREATED}
    container = {"name": component, "image": "psfleet-worker:1", "imageID": "", "ready": False, "restartCount": 0}
    if state is not None:
        status["containerStatuses"] = [{**container, "started": False, "state": state}]
    spec = {"containers": [{"name": component, "resources": {"limits": {"memory": "2Gi"}}}]}
    own = {"app.kubernetes.io/component": component, "batch.kubernetes.io/job-completion-index": str(index)}
    meta = {**name, "labels": {**LABELS, **own}, "annotations": notes or {}}
    return Pod(read({"metadata": meta, "spec": spec, "status": {"phase": phase, **status}}, "V1Pod"))


def ended(code: int, reason: str = "Error", message: str | None = None, **of_pod: Any) -> Pod:
    """As `pod`, with a process that has ended."""
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return pod(state, "Succeeded" if code == 0 else "Failed", **of_pod)


def kept(code: int, component: str = "worker") -> Pod:
    """As `ended`, in a pod that does not end: of two containers that the cluster has added, the second one runs."""
    states = {"gone": {"terminated": {"exitCode": 0, "reason": "Completed"}}, "mesh": {"running": {}}}
    states[component] = {"terminated": {"exitCode": code, "reason": "Error"}}
    rest = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
    statuses = [{"name": name, "state": state, **rest} for name, state in states.items()]
    return pod(component=component, containerStatuses=statuses)


def job(component: str = "worker", verdict: str = "", failed: str | None = None, **spec: Any) -> Any:
    """The Job of the chief, or one of two pods."""
    condition = {"type": verdict, "status": "True", "reason": "MaxFailedIndexesExceeded", "message": "too\nmany"}
    labels = {"app.kubernetes.io/instance": "small", "app.kubernetes.io/component": component}
    num = 1 if component == "chief" else 2
    content = {
        "metadata": {"name": f"small-{component}", "uid": component, "creationTimestamp": CREATED, "labels": labels},
        "spec": {"completions": num, "parallelism": num, "template": {"spec": {"containers": []}}, **spec},
        "status": {"conditions": [condition] if verdict else [], "failedIndexes": failed},
    }
    return read(content, "V1Job")
