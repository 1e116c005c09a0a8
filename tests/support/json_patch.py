"""Applies kustomize components to objects: resources, images, and patches by deletion and by RFC 6902."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]


def with_component(objects: Sequence[Object], folder: Path) -> list[Object]:
    """What kustomize makes of objects with a component's resources, patches and images."""
    component = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = copy.deepcopy(list(objects))
    for name in component.get("resources", ()):
        found += yaml.safe_load_all((folder / name).read_text())
    for entry in component.get("patches", ()):
        content = yaml.safe_load(entry["patch"])
        chosen = [each for each in found if _is_target(each, entry["target"])]
        assert chosen, f"{folder.name}: nothing is like {entry['target']}"
        if isinstance(content, dict):
            assert content["$patch"] == "delete"
            found = [each for each in found if each not in chosen]
            continue
        for each in chosen:
            for operation in content:
                _apply(each, operation)
    for image in component.get("images", ()):
        _rename(found, image)
    return found


def _is_target(content: Object, target: Mapping[str, str]) -> bool:
    meta = content["metadata"]
    key, _, value = target.get("labelSelector", "").partition("=")
    is_selected = not key or meta.get("labels", {}).get(key) == value
    is_named = re.fullmatch(target.get("name", ".*"), meta["name"]) is not None
    return content["kind"] == target["kind"] and is_named and is_selected


def _apply(content: Object, operation: Mapping[str, Any]) -> None:
    *path, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
    at: Any = content
    for part in path:
        at = at[int(part)] if isinstance(at, list) else at[part]
    kind = operation["op"]
    key: Any = last
    if isinstance(at, list):
        key = len(at) if last == "-" else int(last)
        assert key <= len(at), f"{operation['path']} is behind the end of the list"
    if kind == "remove":
        del at[key]
    elif kind == "add" and isinstance(at, list):
        at.insert(key, copy.deepcopy(operation["value"]))
    else:
        assert kind == "add" or isinstance(at, list) or key in at, f"nothing to replace at {operation['path']}"
        at[key] = copy.deepcopy(operation["value"])


def _rename(objects: Sequence[Object], image: Mapping[str, str]) -> None:
    for each in objects:
        for container in each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            if container["image"].partition(":")[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
