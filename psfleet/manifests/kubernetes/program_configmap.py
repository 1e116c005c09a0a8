"""A training program's folder as a ConfigMap: files of any kind, also in subfolders, up to the size of a ConfigMap."""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.errors import UsageError
from psfleet.files import LOCK
from psfleet.manifests.kubernetes.names import labels, program_map

MOST_BYTES = 1_000_000
"""A ConfigMap holds 1 MiB, its other parts included."""
LEFT_OUT = re.compile(r"\..*|__pycache__")
"""Names of files and folders: hidden ones, and caches."""
RESULTS = frozenset({"runs", "studies", "services"})
"""Names of the folders of results of runs, studies and services; a Python package can have such a name, too."""
PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
"""In PEM (RFC 7468). All pods of workers and all users who can read ConfigMaps would get it."""
CURE = "put the program into an image (container.program: image) and its data on a volume (container.mounts)"
logger = logging.getLogger("psfleet.launch")
INVALID_IN_KEY = re.compile(r"[^-._a-zA-Z0-9]")


@dataclass(frozen=True)
class Files:
    """The files in a program's folder.

    Attributes:
        content: Their contents by path relative to the folder, in the order of the paths.
    """

    content: Mapping[str, bytes]

    @classmethod
    def of(cls, folder: Path, cure: str = CURE) -> Files:
        """Reads a folder, without what is named as in `LEFT_OUT`, without results, and without files that have private
        keys: a line names each. Of a Python file it is a warning.

        Args:
            cure: What to do if it is too large, for the message.

        Raises:
            UsageError: It is too large for a ConfigMap, or cannot be read.
        """
        contents: dict[str, bytes] = {}
        size = 0
        for path in sorted(_paths(folder)):
            name = path.relative_to(folder).as_posix()
            size += path.stat().st_size
            if size > MOST_BYTES:
                raise UsageError(
                    f"program folder {folder} has more than {MOST_BYTES} bytes, expected less for a ConfigMap: {cure}"
                )
            try:
                content = path.read_bytes()
            except OSError as error:
                raise UsageError(f"program folder {folder}: {name}: {error.strerror or error}") from error
            if PRIVATE_KEY.search(content):
                if path.suffix != ".py":
                    logger.warning("%s is not given to the cluster: it has a private key", folder / name)
                    continue
                logger.warning("%s has a private key, which the pods of workers have, too", folder / name)
            contents[name] = content
        return cls(contents)

    def without(self, secrets: Iterable[bytes]) -> Files:
        """The files whose content is none of the secrets, white space at both ends aside."""
        left_out = {secret.strip() for secret in secrets}
        return Files({path: content for path, content in self.content.items() if content.strip() not in left_out})

    def items(self) -> list[dict[str, str]]:
        """The `items` of a volume of the ConfigMap: keys and the files' paths, which keys, without slashes, are not."""
        return [{"key": key, "path": path} for path, key in self._keys().items()]

    def config_map(self, name: str, labelled: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The ConfigMap with these files for the job or client `name`; with the labels of the job by default."""
        texts: dict[str, str] = {}
        others: dict[str, str] = {}
        for path, key in self._keys().items():
            try:
                texts[key] = self.content[path].decode()
            except UnicodeDecodeError:
                others[key] = base64.b64encode(self.content[path]).decode()
        meta = {"name": program_map(name), "labels": labels(name) if labelled is None else dict(labelled)}
        config_map: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        if texts:
            config_map["data"] = texts
        if others:
            config_map["binaryData"] = others
        return config_map

    def _keys(self) -> dict[str, str]:
        """A valid and unique key of the ConfigMap for each path."""
        taken: dict[str, str] = {}
        for path in self.content:
            key = INVALID_IN_KEY.sub("_", path)
            while key in taken.values():
                key += "_"
            taken[path] = key
        return taken


def _paths(folder: Path) -> Iterator[Path]:
    """The files of a program; what is left out is not read: a virtual environment has ten thousands of files."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not LEFT_OUT.fullmatch(name) and not _is_results(Path(parent, name))]
        paths = (Path(parent, name) for name in files if not LEFT_OUT.fullmatch(name))
        yield from (path for path in paths if path.is_file())


def _is_results(folder: Path) -> bool:
    """Whether a folder has results: it is not a package, which has Python files and no folders with locks."""
    if folder.name not in RESULTS:
        return False
    try:
        paths = list(folder.iterdir())
        has_locks = any((path / LOCK).exists() for path in paths)
    except OSError:
        return True
    return has_locks or not any(path.suffix == ".py" for path in paths)
