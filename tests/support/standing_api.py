"""An API server of Kubernetes for standing fleets: pods of StatefulSets appear, serve, and go with them."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.kubernetes_api import CREATED, Api, Object

READY = {"running": {"startedAt": CREATED}}


class StandingApi(Api):
    """Runs the pods of StatefulSets, and those of clients to their end.

    Attributes:
        server: State of the container of each new ps and worker.
        client: The same of each client.
        log: What every container prints.
        happened: The events of every object.
        requests: Method and path of each request that changes something.
        lock: Held while a request is answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.server: Object = READY
        self.client: Object = ended(0)
        self.log: list[str] = []
        self.happened: list[Object] = []
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.RLock()

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        """See `Api`."""
        path = urlsplit(url).path
        with self.lock:
            if method != "GET":
                self.requests.append((method, path.rpartition("/here/")[2]))
            status, content = super().answer(method, url, body)
        if path.endswith("/log"):
            stamped = parse_qs(urlsplit(url).query).get("timestamps", [""])[0].lower() == "true"
            lines = [f"2026-01-01T00:00:0{n}.5Z {line}" if stamped else line for n, line in enumerate(self.log)]
            return status, "\n".join(lines).encode()
        if path.endswith("/events"):
            return 200, {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": self.happened}
        return status, content

    def _of_object(self, verb: str, resource: str, name: str, body: Any) -> tuple[int, Any]:
        if verb == "create" and (resource, body["metadata"]["name"]) in self.objects:
            return 409, {"kind": "Status", "code": 409, "message": "already exists"}
        answered = super()._of_object(verb, resource, name, body)
        if resource == "statefulsets" and verb in ("create", "patch"):
            self._run(name)
        if resource == "statefulsets" and verb == "delete":
            component = name.rpartition("-")[2]
            for key in [key for key in self.objects if key[0] == "pods" and f"-{component}-" in key[1]]:
                del self.objects[key]
        if resource == "pods" and verb == "create":
            name = body["metadata"]["name"]
            self.objects["pods", name] |= {"status": _status("client", self.client)}
        return answered

    def _run(self, name: str) -> None:
        """Makes the pods of a StatefulSet."""
        content = self.objects["statefulsets", name]["spec"]
        component = name.rpartition("-")[2]
        for index in range(content["replicas"] if self.server else 0):
            labels = {**content["template"]["metadata"]["labels"], "apps.kubernetes.io/pod-index": str(index)}
            meta = {"name": f"{name}-{index}", "uid": f"{name}-{index}", "creationTimestamp": CREATED, "labels": labels}
            pod = {"metadata": meta, "spec": content["template"]["spec"], "status": _status(component, self.server)}
            self.objects["pods", meta["name"]] = pod


def ended(code: int, reason: str = "Error") -> Object:
    """The state of a container that has ended."""
    when = {"startedAt": CREATED, "finishedAt": CREATED}
    return {"terminated": {"exitCode": code, "reason": reason, **when}}


def _status(component: str, state: Object) -> Object:
    """Of a pod whose container is in a state."""
    is_running = "running" in state
    phase = "Running" if is_running else "Succeeded" if "terminated" in state else "Pending"
    container = {"name": component, "image": "i", "imageID": "", "ready": is_running, "started": is_running,
                 "restartCount": 0, "state": state}  # fmt: skip
    return {"phase": phase, "containerStatuses": [container]}
