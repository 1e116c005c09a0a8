"""An API server for tests of the platform, to which the current context of a kubeconfig file leads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from kubernetes.config import kube_config
from support.kubernetes_api import Api, serving
from support.standing_api import StandingApi

AnApi = TypeVar("AnApi", bound=Api)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """An API to which the current context leads; certificates are kept in a folder of this test."""
    with reached(Api(), tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def standing_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandingApi]:
    """The same for an API that runs the pods of standing fleets."""
    with reached(StandingApi(), tmp_path, monkeypatch) as made:
        yield made


@contextmanager
def reached(made: AnApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnApi]:
    """Serves an API to which the current context leads."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "config"
    with serving(made):
        path.write_text(
            json.dumps(
                {
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": made.url}}],
                    "users": [{"name": "test", "user": {}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "here"}}],
                }
            )
        )
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        yield made
