"""How the API of a cluster is reached: a context of the kubeconfig file, or the account of the pod psfleet runs in."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from kubernetes import client, config
from kubernetes.config import incluster_config, kube_config
from kubernetes.config.config_exception import ConfigException

from psfleet.errors import UsageError, innermost

WITHOUT = "`psfleet train JOB` needs no cluster"
DEFAULT_NAMESPACE = "default"
SECTIONS = ("clusters", "contexts", "users", "current-context")
"""Of a kubeconfig file; kubectl leaves them empty in one from which everything was removed."""


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
        merged = kube_config.KubeConfigMerger(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
        chosen = _current_context(merged) if context is None else context
        config.load_kube_config(context=chosen, client_configuration=settings)
        return settings, _namespace(merged, chosen)
    except (AttributeError, ConfigException, OSError, TypeError, UnicodeDecodeError, yaml.YAMLError) as error:
        own = _of_pod() if context is None and not _has_file() else None
        if own is not None:
            return own
        wanted = "" if context is None else f"context {context}: "
        raise UsageError(
            f"no Kubernetes cluster is configured ({wanted}{innermost(error)}): set KUBECONFIG; {WITHOUT}"
        ) from error


def _current_context(merged: kube_config.KubeConfigMerger) -> str | None:
    """The first one that a file of KUBECONFIG names, as with kubectl; the package takes the last one."""
    named = (each.get("current-context") for each in merged.config_files.values())
    return next((str(name) for name in named if name), None)


def _namespace(merged: kube_config.KubeConfigMerger, context: str | None) -> str:
    """The namespace of an existing context."""
    found = merged.config["contexts"].get_with_name(context)["context"].safe_get("namespace")
    return str(found or DEFAULT_NAMESPACE)


def _has_file() -> bool:
    """Whether there is a kubeconfig file with content: an empty one, such as /dev/null or of kubectl, is none."""
    paths = kube_config.KUBE_CONFIG_DEFAULT_LOCATION.split(kube_config.ENV_KUBECONFIG_PATH_SEPARATOR)
    found = [path for each in paths if each and os.path.exists(path := os.path.expanduser(each))]
    return any(_has_content(Path(path)) for path in found)


def _has_content(path: Path) -> bool:
    """Whether a file names a cluster, a context or a user, or is no kubeconfig file at all."""
    try:
        content = yaml.safe_load(path.read_bytes())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return True
    if isinstance(content, dict):
        return any(content.get(name) for name in SECTIONS)
    return content is not None


def _of_pod() -> tuple[client.Configuration, str] | None:
    """As `configuration`, by the ServiceAccount of the pod in which this process runs; None: it runs in no pod."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
        path = Path(incluster_config.SERVICE_TOKEN_FILENAME).with_name("namespace")
        return settings, path.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except (ConfigException, OSError):
        return None
