"""Checks Kubernetes objects against the schema of the API, for each version from the oldest supported one on."""

from __future__ import annotations

import functools
import re
import warnings
from pathlib import Path
from typing import Any

import kubernetes_validate
from kubernetes_validate import utils

OLDEST = (1, 33)

# It reads and parses the definitions of all kinds, megabytes of JSON, for each object.
utils.schema_contents = functools.cache(utils.schema_contents)


def versions() -> list[str]:
    """Of Kubernetes, as far as kubernetes-validate knows them."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    found = {(int(m[1]), int(m[2])) for m in map(re.compile(r"v(\d+)\.(\d+)\.").match, _names(folder)) if m}
    return [f"{major}.{minor}" for major, minor in sorted(found) if (major, minor) >= OLDEST]


def problem(content: dict[str, Any], version: str) -> str:
    """What is wrong with an object, unknown fields included; empty if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own libraries
        try:
            kubernetes_validate.validate(content, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{content['kind']} {content['metadata']['name']}: {error}"
    return ""


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
