"""How a cluster is found: contexts of the kubeconfig file, and the account of a pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.config import incluster_config, kube_config

from psfleet.errors import UsageError
from psfleet.platforms.kubernetes.configuration import configuration


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the contexts `near`, the current one, and `far`, whose namespace is `team`."""

    def context(name: str, **more: str) -> dict[str, Any]:
        return {"name": name, "context": {"cluster": name, "user": name, **more}}

    path = tmp_path / "config"
    content = {
        "current-context": "near",
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}:6443"}} for name in ("near", "far")],
        "users": [{"name": name, "user": {"token": f"of-{name}"}} for name in ("near", "far")],
        "contexts": [context("near"), context("far", namespace="team")],
    }
    path.write_text(json.dumps(content))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return path


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the ServiceAccount of a pod in the namespace `robots`."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    for name, text in {"token": "secret", "ca.crt": "certificate", "namespace": "robots"}.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(folder / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(folder / "ca.crt"))
    return folder


def token(settings: client.Configuration) -> str:
    """The header by which a client with these settings proves who it is."""
    return str(settings.auth_settings()["BearerToken"]["value"]).lower()


@pytest.mark.parametrize(
    ("context", "host", "namespace"),
    [(None, "http://near:6443", "default"), ("far", "http://far:6443", "team")],
)
def test_a_context_has_a_cluster_a_namespace_and_a_user(
    kubeconfig: Path, context: str | None, host: str, namespace: str
) -> None:
    settings, found = configuration(context)
    assert (settings.host, found) == (host, namespace)
    assert token(settings) == f"bearer of-{context or 'near'}"


def test_an_unknown_context_is_named_even_in_a_pod(kubeconfig: Path, account: Path) -> None:
    with pytest.raises(UsageError, match=r"no Kubernetes cluster is configured .context moon: .*moon"):
        configuration("moon")


def test_a_pod_without_a_file_uses_its_own_account(kubeconfig: Path, account: Path) -> None:
    assert configuration(None)[0].host == "http://near:6443", "as with kubectl, a file comes first"
    kubeconfig.unlink()
    settings, namespace = configuration(None)
    assert (settings.host, namespace, token(settings)) == ("https://10.0.0.1:443", "robots", "bearer secret")


def test_outside_of_a_pod_a_file_is_needed(kubeconfig: Path) -> None:
    kubeconfig.unlink()
    with pytest.raises(UsageError, match=r"no Kubernetes cluster is configured .*: set KUBECONFIG"):
        configuration(None)


@pytest.mark.parametrize("content", [b"contexts: [", b"\xff"])
def test_a_file_that_is_no_yaml_is_named_in_one_line(kubeconfig: Path, content: bytes) -> None:
    kubeconfig.write_bytes(content)
    with pytest.raises(UsageError, match=r"no Kubernetes cluster is configured .*: set KUBECONFIG") as caught:
        configuration(None)
    assert len(str(caught.value).splitlines()) == 1


def without_current_context(path: Path) -> None:
    """Rewrites a file: it names no current context."""
    content = json.loads(path.read_text())
    del content["current-context"]
    path.write_text(json.dumps(content))


def test_of_several_files_the_first_current_context_counts(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with kubectl."""
    second = kubeconfig.with_name("second")
    second.write_text(json.dumps({"current-context": "far"}))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", f"{kubeconfig}:{second}")
    settings, namespace = configuration(None)
    assert (settings.host, namespace) == ("http://near:6443", "default")
    without_current_context(kubeconfig)
    settings, namespace = configuration(None)
    assert (settings.host, namespace) == ("http://far:6443", "team")


def test_a_context_that_is_named_needs_no_current_one(kubeconfig: Path) -> None:
    without_current_context(kubeconfig)
    settings, namespace = configuration("far")
    assert (settings.host, namespace) == ("http://far:6443", "team")
    with pytest.raises(UsageError, match="Expected key current-context"):
        configuration(None)


@pytest.mark.parametrize("content", ["contexts: [", "text", "current-context: far"])
def test_a_pod_with_an_invalid_file_does_not_use_its_own_account(kubeconfig: Path, account: Path, content: str) -> None:
    kubeconfig.write_text(content)
    with pytest.raises(UsageError, match=r"no Kubernetes cluster is configured .*: set KUBECONFIG"):
        configuration(None)


EMPTIED = """
apiVersion: v1
kind: Config
clusters: null
contexts: null
current-context: ""
preferences: {}
users: null
"""
"""As kubectl leaves a file from which everything was removed."""


@pytest.mark.parametrize("content", ["", "# nothing\n", EMPTIED, "clusters: []"])
def test_an_empty_file_is_none(kubeconfig: Path, account: Path, content: str) -> None:
    """KUBECONFIG=/dev/null, for example."""
    kubeconfig.write_text(content)
    assert configuration(None)[1] == "robots"
