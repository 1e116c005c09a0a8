"""The Kubernetes API of the namespace in which fleets run, with its errors translated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTClientObject
from urllib3.exceptions import HTTPError
from websocket import WebSocketException

from psfleet.errors import LostPeerError, UsageError, innermost
from psfleet.launch.log_reader import lines_of
from psfleet.manifests.kubernetes.names import MANAGED_BY, PART_OF, RUN, STANDING, selector, selector_text
from psfleet.platforms.kubernetes.configuration import WITHOUT, configuration

OLDEST_VERSION = (1, 33)
ANSWER_SECS = 30
FOLLOW_SECS = 300
"""How long a log that is followed may have no new line before it is opened again: its connection may be dead."""
FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
HANDSHAKE = re.compile("Handshake status (401|403)")
"""In the package's error for a connection that the API refuses, whose own status is 0."""
TEMPORARY = (408, 429)
SERVER_ERROR = 500

UNANSWERED = (HTTPError, OSError, WebSocketException)
API_ERRORS = (ApiException, *UNANSWERED)


class ForbiddenError(UsageError):
    """The user of the cluster lacks a right."""


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Context manager that translates the API's errors.

    Args:
        what: What the block does, for the message: "Kubernetes refuses to `what`".

    Raises:
        ForbiddenError: The user has no right to the request.
        UsageError: The API refuses the request for another reason.
        LostPeerError: The API does not answer, is overloaded, or opens no connection for a command (status 0).
    """
    try:
        yield
    except ApiException as error:
        handshake = HANDSHAKE.match(str(error.reason))
        status = int(handshake[1]) if handshake else error.status
        is_temporary = not status or status in TEMPORARY or status >= SERVER_ERROR
        refused = ForbiddenError if status == FORBIDDEN else UsageError
        kind = LostPeerError if is_temporary else refused
        raise kind(f"Kubernetes refuses to {what}: {_reason(error)}") from error
    except UNANSWERED as error:
        raise LostPeerError(f"Kubernetes does not answer ({what}): {innermost(error)}") from error


@contextmanager
def suppress_status(*codes: int) -> Iterator[None]:
    """Context manager that ends its block without an error if the API answers with one of these codes."""
    try:
        yield
    except ApiException as error:
        if error.status not in codes:
            raise


def suppress_missing() -> AbstractContextManager[None]:
    """Context manager that ends its block without an error if the API does not find an object."""
    return suppress_status(NOT_FOUND)


class _Transport(RESTClientObject):
    """Gives a deadline to each request that has none."""

    def request(self, *arguments: Any, _request_timeout: Any = None, **options: Any) -> Any:
        """See RESTClientObject."""
        return super().request(*arguments, _request_timeout=_request_timeout or ANSWER_SECS, **options)


class Cluster:
    """A cluster as one user sees it, by a context of the kubeconfig file or, in a pod without one, by its own account.

    Attributes:
        namespace: Where fleets run.
        core, batch, apps: Clients of these groups of the API.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        """Connects to a cluster.

        Args:
            context: Of the kubeconfig file; None: the current one.
            namespace: None: that of the context.

        Raises:
            UsageError: No cluster is configured, or it cannot be reached or is too old.
        """
        settings, configured = configuration(context)
        settings.retries = False
        self.api = client.ApiClient(settings)
        self.api.rest_client = _Transport(settings)
        self.namespace = namespace or configured
        self.core = client.CoreV1Api(self.api)
        self.batch = client.BatchV1Api(self.api)
        self.apps = client.AppsV1Api(self.api)
        self._require_version()

    def _require_version(self) -> None:
        try:
            server = client.VersionApi(self.api).get_code()
        except API_ERRORS as error:
            reason = _reason(error) if isinstance(error, ApiException) else innermost(error)
            raise UsageError(
                f"no Kubernetes cluster can be reached ({reason}): look at KUBECONFIG; {WITHOUT}"
            ) from error
        version = (int(server.major), int(re.sub(r"\D.*", "", server.minor)))
        if version < OLDEST_VERSION:
            major, minor = OLDEST_VERSION
            raise UsageError(f"the cluster is Kubernetes {server.git_version}, expected {major}.{minor} or later")

    def jobs(self, name: str | None) -> list[Any]:
        """V1Jobs of a fleet, or of all."""
        return self._listed(self.batch.list_namespaced_job, name)

    def pods(self, name: str | None, part_of: str = RUN) -> list[Any]:
        """V1Pods of a fleet, or of all; of standing ones, clients' included, if `part_of` is STANDING."""
        return self._listed(self.core.list_namespaced_pod, name, part_of)

    def stateful_sets(self, name: str | None) -> list[Any]:
        """V1StatefulSets of a standing fleet, or of all."""
        return self._listed(self.apps.list_namespaced_stateful_set, name, STANDING)

    def claims(self, name: str) -> list[Any]:
        """V1PersistentVolumeClaims that a fleet made."""
        return self._listed(self.core.list_namespaced_persistent_volume_claim, name)

    def secret(self, name: str) -> Mapping[str, str]:
        """The content of a Secret in base64; empty if there is none."""
        with translate_errors(f"read Secret {name}"), suppress_missing():
            return self.core.read_namespaced_secret(name, self.namespace).data or {}
        return {}

    def events(self, uid: str) -> list[Any]:
        """CoreV1Events of the object with a uid; the API keeps them for an hour."""
        with translate_errors("list events"):
            selected = f"involvedObject.uid={uid}"
            return list(self.core.list_namespaced_event(self.namespace, field_selector=selected).items)

    def _listed(self, listing: Callable[..., Any], name: str | None, part_of: str = RUN) -> list[Any]:
        with translate_errors("list the parts of fleets"):
            return list(listing(self.namespace, label_selector=label_selector(name, part_of)).items)

    def config_map(self, name: str, part_of: str | None = None) -> Mapping[str, str]:
        """The texts of a ConfigMap; empty if there is none, or it is not of the fleet of this name and `part_of`."""
        with translate_errors(f"read ConfigMap {name}"), suppress_missing():
            found = self.core.read_namespaced_config_map(name, self.namespace)
            wanted = {} if part_of is None else selector(name, None, part_of)
            if wanted.items() <= (found.metadata.labels or {}).items():
                return found.data or {}
        return {}

    def has_owner(self, name: str) -> bool:
        """Whether there is a ConfigMap of this name that is deleted with another object."""
        with translate_errors(f"read ConfigMap {name}"), suppress_missing():
            found = self.core.read_namespaced_config_map(name, self.namespace)
            return bool(found.metadata.owner_references)
        return False

    def create_config_map(self, content: Mapping[str, Any]) -> bool:
        """Creates a ConfigMap; False: there is one of its name."""
        with translate_errors(f"create ConfigMap {content['metadata']['name']}"), suppress_status(CONFLICT):
            self.core.create_namespaced_config_map(self.namespace, dict(content))
            return True
        return False

    def create_pod(self, content: Mapping[str, Any]) -> Any:
        """Creates a pod, and returns it as V1Pod; None: there is one of its name."""
        with translate_errors(f"create pod {content['metadata']['name']}"), suppress_status(CONFLICT):
            return self.core.create_namespaced_pod(self.namespace, dict(content))
        return None

    def pod(self, name: str) -> Any:
        """A V1Pod; None: there is none of this name."""
        with translate_errors(f"read pod {name}"), suppress_missing():
            return self.core.read_namespaced_pod(name, self.namespace)
        return None

    def annotate_pod(self, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Changes annotations of the pod with a name and uid, if it is there."""
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        with translate_errors(f"patch pod {name}"), suppress_status(NOT_FOUND, CONFLICT):
            self.core.patch_namespaced_pod(name, self.namespace, body)

    def delete_pod(self, name: str, uid: str | None = None) -> None:
        """Asks a pod to end, if it is there; only the one with the uid, if one is given."""
        body = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=uid))
        # A conflict: the pod of this name has another uid.
        with translate_errors(f"delete pod {name}"), suppress_status(NOT_FOUND, CONFLICT):
            self.core.delete_namespaced_pod(name, self.namespace, body=body)

    def delete_config_map(self, name: str) -> None:
        """Deletes a ConfigMap, if it is there."""
        with translate_errors(f"delete ConfigMap {name}"), suppress_missing():
            self.core.delete_namespaced_config_map(name, self.namespace)

    def log(
        self, pod: str, container: str, tail: int | None = None, follow: bool = False, timestamps: bool = False
    ) -> Iterator[str]:
        """The lines of the log of a container; none if its pod or its log is missing, or once the connection breaks.

        Args:
            tail: Only this many of the last lines; None: all.
            follow: Whether to wait for more until the log ends, or its connection does.
            timestamps: Whether the time at which it was printed is before each line, with a space.
        """
        options = {} if tail is None else {"tail_lines": tail}
        limits = (ANSWER_SECS, FOLLOW_SECS if follow else ANSWER_SECS)
        with suppress(*API_ERRORS):
            reply = self.core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                follow=follow,
                timestamps=timestamps,
                _preload_content=False,
                _request_timeout=limits,
                **options,
            )
            yield from lines_of(reply.stream(decode_content=False))


def label_selector(name: str | None, part_of: str = RUN) -> str:
    """Selects the objects of a fleet, or of all fleets, that psfleet made; not a pod of k8s/components/tensorboard."""
    chosen = {PART_OF: part_of} if name is None else selector(name, None, part_of)
    return selector_text({MANAGED_BY: "psfleet", **chosen})


def _reason(error: ApiException) -> str:
    """The API's message in one line."""
    found = re.search(r'"message": *"((?:[^"\\]|\\.)*)"', str(error.body or error.reason))
    return found[1].replace('\\"', '"') if found else f"{error.status} {error.reason}"
