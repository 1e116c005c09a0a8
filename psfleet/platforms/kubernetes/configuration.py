"""How the API of a cluster is reached: a context of the kubeconfig file, or the account of the pod psfleet runs in."""

from __future__ import annotations

from pathlib import Path

from kubernetes import client, config
from kubernetes.config import incluster_config
from kubernetes.config.config_exception import ConfigException
from yaml import YAMLError

from psfleet.errors import UsageError, innermost

WITHOUT = "`psfleet train JOB` needs no cluster"
DEFAULT_NAMESPACE = "default"


def configuration(context: str | None) -> tuple[client.Configuration, str]:
    """The client's configuration, and the namespace that belongs to it.

    As with kubectl, a pod's own account is used only where there is no kubeconfig file.

    Args:
        context: Of the kubeconfig file; None: the current one.

    Raises:
        UsageError: There is neither, or the file is invalid or has no such context.
    """
    settings = client.Configuration()
    try:
        config.load_kube_config(context=context, client_configuration=settings)
        return settings, _namespace(context)
    except (ConfigException, OSError, TypeError, UnicodeDecodeError, YAMLError) as error:
        if context is None:
            own = _of_pod()
            if own is not None:
                return own
        wanted = "" if context is None else f"context {context}: "
        raise UsageError(
            f"no Kubernetes cluster is configured ({wanted}{innermost(error)}): set KUBECONFIG; {WITHOUT}"
        ) from error


def _namespace(context: str | None) -> str:
    """The namespace of a context of the kubeconfig file."""
    contexts, current = config.list_kube_config_contexts()
    chosen = current if context is None else next(each for each in contexts if each["name"] == context)
    return str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)


def _of_pod() -> tuple[client.Configuration, str] | None:
    """As `configuration`, by the ServiceAccount of the pod in which this process runs; None: it runs in no pod."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
        path = Path(incluster_config.SERVICE_TOKEN_FILENAME).with_name("namespace")
        return settings, path.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except (ConfigException, OSError):
        return None
