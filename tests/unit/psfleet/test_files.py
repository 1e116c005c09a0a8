"""Files that are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.files import replace_file


def test_a_file_is_made_or_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, "é")
    assert path.read_bytes() == "é".encode()
    replace_file(path, b"\xff", writer="7")
    assert path.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_finds_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ".started"
    replace_file(path, "before")

    def fill_up(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_up)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "after", writer="chief")
    assert path.read_text() == "before"
    assert [each.name for each in sorted(tmp_path.iterdir())] == [".started", ".started.chief.tmp"]
