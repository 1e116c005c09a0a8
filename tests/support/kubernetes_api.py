"""An API server of Kubernetes that stores objects and notes what is asked of it; it runs nothing."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]

GROUPS = {
    "": {"configmaps": "ConfigMap", "events": "Event", "persistentvolumeclaims": "PersistentVolumeClaim", "pods": "Pod",
         "secrets": "Secret", "serviceaccounts": "ServiceAccount", "services": "Service"},
    "apps": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "batch": {"jobs": "Job"},
    "networking.k8s.io": {"networkpolicies": "NetworkPolicy"},
    "policy": {"poddisruptionbudgets": "PodDisruptionBudget"},
}  # fmt: skip
"""Kinds by group and resource; each group has the version v1."""
VERSION = {"major": "1", "minor": "35", "gitVersion": "v1.35.0", "gitCommit": "", "gitTreeState": "", "buildDate": "",
           "goVersion": "", "compiler": "", "platform": ""}  # fmt: skip
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1/namespaces/(?P<namespace>[^/]+)/(?P<resource>[^/]+)(?P<rest>/.*)?"
)
STATUS: dict[str, Object] = {"deployments": {}, "jobs": {}, "pods": {}, "statefulsets": {"replicas": 0}}
"""The first status of resources that have one."""
CREATED = "2026-01-01T00:00:00Z"
Asked = tuple[str, str, str]


class Api:
    """The objects of a namespace.

    Attributes:
        objects: By resource and name.
        asked: Group, resource with its subresource, and verb of each request, as a Role names them.
        url: Where it listens.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.asked: set[Asked] = set()
        self.url = ""

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        """Status and content of the reply to a request."""
        address = urlsplit(url)
        if address.path.rstrip("/") == "/version":
            return 200, VERSION
        found = PATH.fullmatch(address.path)
        if found is None:
            return self._discovery(address.path)
        group, resource = found["group"] or "", found["resource"]
        name, _, part = (found["rest"] or "")[1:].partition("/")
        verb = {"GET": "get" if name else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
        if verb == "patch" and (resource, name) not in self.objects:
            # Server-side apply of a new object.
            self.asked.add((group, resource, "create"))
        self.asked.add((group, f"{resource}/{part}" if part else resource, verb))
        if verb == "list":
            wanted = parse_qs(address.query).get("labelSelector", [""])[0]
            items = [each for (kind, _), each in self.objects.items() if kind == resource and _matches(each, wanted)]
            return 200, {"kind": f"{GROUPS[group][resource]}List", "apiVersion": "v1", "metadata": {}, "items": items}
        return self._of_object(verb, resource, name, body)

    def _of_object(self, verb: str, resource: str, name: str, body: Any) -> tuple[int, Any]:
        """The reply to a request for one object."""
        if verb in ("create", "patch"):
            name = name or body["metadata"]["name"]
            new = {
                "metadata": {"uid": "u", "creationTimestamp": CREATED},
                **({"status": STATUS[resource]} if resource in STATUS else {}),
            }
            merged = _merged(self.objects.get((resource, name), new), body)
            self.objects[resource, name] = merged
            return 200, merged
        if (resource, name) not in self.objects:
            return 404, {"kind": "Status", "code": 404, "message": f"{resource} {name} not found"}
        found = self.objects[resource, name]
        if verb == "delete":
            uid = found["metadata"]["uid"]
            if (body or {}).get("preconditions", {}).get("uid", uid) != uid:
                return 409, {"kind": "Status", "code": 409, "message": f"{resource} {name} has another uid"}
            del self.objects[resource, name]
        return 200, found

    def _discovery(self, path: str) -> tuple[int, Any]:
        """Which kinds there are, as the dynamic client asks for them."""
        if path == "/apis":
            versions = [{"groupVersion": f"{group}/v1", "version": "v1"} for group in GROUPS if group]
            groups = [
                {"name": each["groupVersion"].partition("/")[0], "versions": [each], "preferredVersion": each}
                for each in versions
            ]
            return 200, {"kind": "APIGroupList", "groups": groups}
        group = path.split("/")[2] if path.startswith("/apis/") else ""
        kinds = GROUPS.get(group, {})
        verbs = ["get", "list", "create", "patch", "delete"]
        resources = [
            {"name": resource, "kind": kind, "singularName": kind.lower(), "namespaced": True, "verbs": verbs}
            for resource, kind in kinds.items()
        ]
        return 200, {"kind": "APIResourceList", "groupVersion": f"{group}/v1".lstrip("/"), "resources": resources,
                     "versions": ["v1"]}  # fmt: skip


def _merged(before: Any, change: Any) -> Any:
    """An object with a merge patch."""
    if not isinstance(before, dict) or not isinstance(change, dict):
        return change
    return before | {key: _merged(before.get(key), value) for key, value in change.items()}


def _matches(content: Object, selector: str) -> bool:
    labels = content["metadata"].get("labels", {})
    pairs = (text.partition("=") for text in selector.split(",") if text)
    return all(labels.get(key) == value for key, _, value in pairs)


@contextmanager
def serving(api: Api) -> Iterator[None]:
    """Serves an API on a port of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, content = api.answer(self.command, self.path, body)
            reply = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_POST = do_PATCH = do_DELETE = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
