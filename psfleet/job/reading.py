"""Reads job files and fleet files as mappings; nothing in them is checked yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from psfleet.errors import BadJobError, UsageError

OF_FLEET = {"device": ("visible_gpus",), "input": ("loaders",)}
"""By section, the fields that depend on the number of workers."""
MERGE = "tag:yaml.org,2002:merge"
"""The tag of `<<`, whose value is merged: what it adds is no key of the mapping."""


class UniqueKeys(yaml.SafeLoader):
    """A YAML loader that refuses a key that is twice in a mapping (YAML 1.2.2, 3.2.1.1). PyYAML takes the last one."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Adds what is merged to a mapping, once its own keys are checked; called again, it has nothing to add."""
        if id(node) not in self._checked:
            found: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                    if (key.tag, key.value) in found:
                        problem = f"found the key {key.value!r} twice, expected it once"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    found.add((key.tag, key.value))
            self._checked.add(id(node))
        super().flatten_mapping(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; that of a date that does not exist, or the like, is an error of YAML with its line."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


def read_mapping(path: Path, kind: str, loader: type[yaml.SafeLoader] = UniqueKeys) -> dict[str, Any]:
    """Reads a YAML file whose content is a mapping.

    Args:
        path: The file.
        kind: What the file is, for messages.
        loader: Knows the tags of the file.

    Raises:
        UsageError: The file cannot be read.
        BadJobError: The content is no mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), loader)
    except OSError as error:
        raise UsageError(f"{kind} {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadJobError(f"{kind} {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise BadJobError(f"{kind} {path} holds {type(content).__name__}, expected a mapping of fields")
    return content


def read_job_file(path: Path) -> dict[str, Any]:
    """Reads a job file, or a study file given in its place; raises as `read_mapping`."""
    return read_mapping(path, "job file", path_loader(path.parent.resolve()))


def is_study(content: Mapping[str, Any]) -> bool:
    """Whether the content is that of a study file, which is validated elsewhere: it has a space and no program."""
    return "space" in content and "program" not in content


def is_yaml_file(path: Path) -> bool:
    """Whether a path is a file in YAML, by its name."""
    return path.is_file() and path.suffix in (".yaml", ".yml")


def path_loader(folder: Path) -> type[yaml.SafeLoader]:
    """A YAML loader that knows the tag `!path`: a path relative to a folder."""

    class Loader(UniqueKeys):
        pass

    def path(loader: yaml.SafeLoader, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "!path needs a text", node.start_mark)
        return str(folder / loader.construct_scalar(node))

    Loader.add_constructor("!path", path)
    return Loader


def without_workers(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a job file without the fields that depend on its number of workers, for a fleet of another size.

    The other sections are the same objects.
    """
    found = dict(content)
    for section, fields in OF_FLEET.items():
        if isinstance(inner := found.get(section), dict):
            found[section] = {field: value for field, value in inner.items() if field not in fields}
    return found


def override(content: dict[str, Any], text: str) -> None:
    """Sets one field of a file's content.

    Args:
        content: Changed in place.
        text: `key=value`; a dotted key addresses a field of a section, the value is YAML.

    Raises:
        UsageError: The text is not that.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageError(f"--set {text!r}: expected key=value")
    *sections, last = key.split(".")
    mapping = content
    for section in sections:
        inner = mapping.get(section)
        if inner is None:
            inner = mapping[section] = {}
        if not isinstance(inner, dict):
            raise UsageError(f"--set {text!r}: {section} is not a section")
        mapping = inner
    try:
        mapping[last] = yaml.load(value, UniqueKeys)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {text!r}: the value is not YAML") from error
