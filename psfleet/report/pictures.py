"""The pictures of a run folder: image summaries of the program at a few steps, which the report shows."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from psfleet.files import replace_file

FOLDER = "pictures"
SUFFIX = ".png"
MAX_TAGS = 8
"""Kinds of pictures that are kept; further ones are in TensorBoard only."""
MAX_STEPS = 4
"""Pictures that are kept of each kind."""
MAX_BYTES = 256 * 1024
"""Of one picture."""
MAX_TAG = 200
"""Bytes of a tag in the name of a file."""


@dataclass(frozen=True)
class Picture:
    """A file of the folder.

    Attributes:
        tag: Of the image summary.
        step: Number of updates that the program's weights included.
    """

    tag: str
    step: int
    path: Path

    @property
    def url(self) -> str:
        """The content as a data URL."""
        return f"data:image/png;base64,{base64.b64encode(self.path.read_bytes()).decode()}"


def pictures(folder: Path) -> dict[str, list[Picture]]:
    """The pictures of a run folder by tag, each by ascending step."""
    found: dict[str, list[Picture]] = {}
    for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}")):
        step, separator, tag = path.name.removesuffix(SUFFIX).partition("-")
        if separator and step.isdecimal():
            found.setdefault(unquote(tag), []).append(Picture(unquote(tag), int(step), path))
    return {tag: sorted(found[tag], key=lambda each: each.step) for tag in sorted(found)}


def add(folder: Path, step: int, images: Iterable[tuple[str, bytes]]) -> None:
    """Writes the pictures of a step, each by a rename, and deletes some of those before.

    The first and the newest of each kind stay, and between them steps that are about equally far apart.

    Args:
        images: Tag and PNG; those beyond the limits of this module are left out.

    Raises:
        OSError: The folder cannot be written.
    """
    known = pictures(folder)
    for tag, content in images:
        name = quote(tag, safe="")
        if len(content) > MAX_BYTES or len(name) > MAX_TAG or (tag not in known and len(known) >= MAX_TAGS):
            continue
        path = folder / FOLDER / f"{step:08d}-{name}{SUFFIX}"
        path.parent.mkdir(exist_ok=True)
        replace_file(path, content)
        others = [each for each in known.get(tag, []) if each.step != step]
        kept = sorted([*others, Picture(tag, step, path)], key=lambda each: each.step)
        if len(kept) > MAX_STEPS:
            _closest(kept).path.unlink(missing_ok=True)
        known = pictures(folder)


def _closest(kept: list[Picture]) -> Picture:
    """The picture, neither the first nor the last, whose neighbours are the closest to each other."""
    gaps = [(after.step - before.step, at) for at, (before, after) in enumerate(zip(kept, kept[2:], strict=False))]
    return kept[min(gaps)[1] + 1]
