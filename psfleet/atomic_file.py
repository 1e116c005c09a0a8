"""Replaces a file as a whole: whoever reads it, also after a crash, finds what was there before or all that is new."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, content: str | bytes, writer: str = "") -> None:
    """Writes a file under another name in its folder, and renames it; it need not be there before.

    It is not flushed to the disk: after a power failure it may be empty.

    Args:
        path: The file.
        content: A text is written as UTF-8.
        writer: Distinguishes processes that may write at the same time; empty: there is only one.

    Raises:
        OSError: The folder cannot be written; the file is as it was.
    """
    names = [path.name.lstrip("."), *([writer] if writer else []), "tmp"]
    temporary = path.with_name("." + ".".join(names))
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)
