"""The namespace of a cluster in which fleets run, through the Kubernetes API; its failures as psfleet's errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from urllib3.exceptions import HTTPError

from psfleet.errors import LostPeerError, UsageError, innermost
from psfleet.launch.kubernetes.names import MANAGED_BY, selector, text

OLDEST = (1, 33)
ANSWER_SECS = 30
WATCH_SECS = 60
"""After which a watch is begun anew."""
RETRY_SECS = 1.0
CLOSE_SECS = 5.0
"""How long a thread may take to notice that its connection was closed."""
MANAGER = "psfleet"
"""Owner of the fields that `psfleet up` applies."""
WITHOUT = "`psfleet train JOB` needs no cluster"
NOT_FOUND = 404

API_ERRORS = (ApiException, HTTPError, OSError)


@contextmanager
def answered(what: str) -> Iterator[None]:
    """Turns the API's failures inside the block into errors that say what could not be done.

    Raises:
        UsageError: The API refuses it.
        LostPeerError: The API does not answer.
    """
    try:
        yield
    except ApiException as error:
        raise UsageError(f"Kubernetes refuses to {what}: {_reason(error)}") from error
    except (HTTPError, OSError) as error:
        raise LostPeerError(f"Kubernetes does not answer ({what}): {innermost(error)}") from error


class Cluster:
    """The current context of the kubeconfig file: its cluster, its namespace, its user.

    Attributes:
        namespace: Where fleets run.
        core, batch: Of the API.
    """

    def __init__(self) -> None:
        try:
            config.load_kube_config()
            _, context = config.list_kube_config_contexts()
        except (ConfigException, OSError, TypeError) as error:
            raise UsageError(
                f"no Kubernetes cluster is configured ({innermost(error)}): set KUBECONFIG; {WITHOUT}"
            ) from error
        settings = client.Configuration.get_default_copy()
        settings.retries = False
        self.api = client.ApiClient(settings)
        self.namespace: str = context["context"].get("namespace", "default")
        self.core = client.CoreV1Api(self.api)
        self.batch = client.BatchV1Api(self.api)
        self._need_version()

    def _need_version(self) -> None:
        try:
            found = client.VersionApi(self.api).get_code(_request_timeout=ANSWER_SECS)
        except API_ERRORS as error:
            told = _reason(error) if isinstance(error, ApiException) else innermost(error)
            raise UsageError(f"no Kubernetes cluster can be reached ({told}): look at KUBECONFIG; {WITHOUT}") from error
        version = (int(found.major), int(re.sub(r"\D.*", "", found.minor)))
        if version < OLDEST:
            raise UsageError(
                f"the cluster is Kubernetes {found.git_version}, expected {OLDEST[0]}.{OLDEST[1]} or later"
            )

    def jobs(self, name: str | None) -> list[Any]:
        """V1Jobs of a fleet, or of all."""
        return self._listed(self.batch.list_namespaced_job, name)

    def pods(self, name: str | None) -> list[Any]:
        """V1Pods of a fleet, or of all."""
        return self._listed(self.core.list_namespaced_pod, name)

    def claims(self, name: str) -> list[Any]:
        """V1PersistentVolumeClaims that a fleet made."""
        return self._listed(self.core.list_namespaced_persistent_volume_claim, name)

    def _listed(self, listing: Callable[..., Any], name: str | None) -> list[Any]:
        with answered("list the parts of fleets"):
            return list(listing(self.namespace, label_selector=chosen(name), _request_timeout=ANSWER_SECS).items)

    def config_map(self, name: str) -> Mapping[str, str]:
        """The texts of a ConfigMap; empty if there is none."""
        try:
            return self.core.read_namespaced_config_map(name, self.namespace, _request_timeout=ANSWER_SECS).data or {}
        except ApiException as error:
            if error.status == NOT_FOUND:
                return {}
            raise UsageError(f"Kubernetes refuses to read ConfigMap {name}: {_reason(error)}") from error

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Server-side apply; what the objects are then."""
        applied = []
        dynamic = DynamicClient(self.api)
        for content in objects:
            with answered(f"apply {content['kind']} {content['metadata']['name']}"):
                resource = dynamic.resources.get(api_version=content["apiVersion"], kind=content["kind"])
                applied.append(
                    resource.server_side_apply(
                        body=dict(content), namespace=self.namespace, field_manager=MANAGER, force_conflicts=True
                    )
                )
        return applied

    def remove_all(self, name: str, kinds: Sequence[tuple[str, str]]) -> None:
        """Deletes all that a fleet made of the given kinds (API version and kind), with what depends on it."""
        dynamic = DynamicClient(self.api)
        for version, kind in kinds:
            with answered(f"delete {kind} of fleet {name}"):
                try:
                    resource = dynamic.resources.get(api_version=version, kind=kind)
                except ResourceNotFoundError:
                    continue
                for found in resource.get(namespace=self.namespace, label_selector=chosen(name)).items:
                    _delete(resource, found.metadata.name, self.namespace)

    def delete_pod(self, name: str) -> None:
        """Asks a pod to end, if it is there."""
        with answered(f"delete pod {name}"):
            try:
                self.core.delete_namespaced_pod(name, self.namespace, _request_timeout=ANSWER_SECS)
            except ApiException as error:
                if error.status != NOT_FOUND:
                    raise

    def log(self, pod: str, tail: int | None = None) -> Iterator[str]:
        """The lines of a pod's log so far; none where it has none (any more)."""
        more = {} if tail is None else {"tail_lines": tail}
        with suppress(*API_ERRORS):
            reply = self.core.read_namespaced_pod_log(pod, self.namespace, _preload_content=False, **more)
            yield from watch.watch.iter_resp_lines(reply)

    def follow(self, pod: str, stream: watch.Watch) -> Iterator[str]:
        """The lines of a pod's log as they come, until it ends or another thread stops the stream."""
        with suppress(*API_ERRORS):
            yield from stream.stream(self.core.read_namespaced_pod_log, pod, self.namespace)


class Mirror:
    """What a listing shows of a fleet, kept up to date by a watch on a thread of its own.

    Args of the constructor:
        changed: Set at each change, and when the API does not answer.
    """

    def __init__(self, listing: Callable[..., Any], cluster: Cluster, name: str, changed: threading.Event) -> None:
        self._listing = listing
        self._cluster = cluster
        self._name = name
        self._changed = changed
        self._objects: dict[str, Any] = {}
        self._is_known = threading.Event()
        self._closing = threading.Event()
        self._stream = watch.Watch()
        self.error = ""
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch."""
        self._closing.set()
        self._stream.stop()
        self._thread.join(CLOSE_SECS)

    def objects(self) -> list[Any] | None:
        """As they are; None if it is not known yet."""
        return list(self._objects.values()) if self._is_known.is_set() else None

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
                self.error = ""
            except API_ERRORS as error:
                # Also 410, which asks for a new list.
                self.error = _reason(error) if isinstance(error, ApiException) else innermost(error)
                self._changed.set()
                self._closing.wait(RETRY_SECS)

    def _follow(self) -> None:
        where: dict[str, Any] = {"namespace": self._cluster.namespace, "label_selector": chosen(self._name)}
        first = self._listing(**where, _request_timeout=ANSWER_SECS)
        self._objects = {each.metadata.uid: each for each in first.items}
        self._is_known.set()
        self._changed.set()
        version = first.metadata.resource_version
        events = self._stream.stream(
            self._listing, **where, resource_version=version, timeout_seconds=WATCH_SECS,
            _request_timeout=WATCH_SECS + ANSWER_SECS,
        )  # fmt: skip
        for event in events:
            each = event["object"]
            objects = dict(self._objects)
            if event["type"] == "DELETED":
                objects.pop(each.metadata.uid, None)
            else:
                objects[each.metadata.uid] = each
            self._objects = objects
            self._changed.set()
            if self._closing.is_set():
                return


def chosen(name: str | None) -> str:
    """The label selector of a fleet, or of all that psfleet made."""
    return text(selector(name)) if name is not None else f"{MANAGED_BY}=psfleet"


def _delete(resource: Any, name: str, namespace: str) -> None:
    try:
        resource.delete(name=name, namespace=namespace, body={"propagationPolicy": "Background"})
    except ApiException as error:
        if error.status != NOT_FOUND:
            raise


def _reason(error: ApiException) -> str:
    """What the API says in one line."""
    found = re.search(r'"message":"((?:[^"\\]|\\.)*)"', str(error.body or ""))
    return found[1].replace('\\"', '"') if found else f"{error.status} {error.reason}"
