"""A training program's folder as a ConfigMap: files of any kind, also in subfolders, up to the size of a ConfigMap."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psfleet.errors import UsageError
from psfleet.manifests.kubernetes.names import labels, program_map

MOST_BYTES = 1_000_000
"""A ConfigMap holds 1 MiB, its other parts included."""
LEFT_OUT = re.compile(r"(^|/)(\..*|__pycache__|runs)(/|$)")
"""Hidden files, caches, and the results of runs on this machine."""
CURE = "put the program into an image (container.program: image) and its data on a volume (container.mounts)"
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
        """Reads a folder, without the files that match `LEFT_OUT`.

        Args:
            cure: What to do if it is too large, for the message.

        Raises:
            UsageError: It is too large for a ConfigMap, or cannot be read.
        """
        contents: dict[str, bytes] = {}
        size = 0
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if LEFT_OUT.search(name) or not path.is_file():
                continue
            size += path.stat().st_size
            if size > MOST_BYTES:
                raise UsageError(
                    f"program folder {folder} has more than {MOST_BYTES} bytes, expected less for a ConfigMap: {cure}"
                )
            try:
                contents[name] = path.read_bytes()
            except OSError as error:
                raise UsageError(f"program folder {folder}: {name}: {error.strerror or error}") from error
        return cls(contents)

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
