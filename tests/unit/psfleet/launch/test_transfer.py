"""Which files of a run are copied: what a callback has put into its folder does not break the copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.scripted_platform import ScriptedPlatform, job

from psfleet.launch.transfer import copy_results


@pytest.mark.parametrize("folder", ["callbacks/mine", "checkpoints/00000020-g1"])
def test_links_and_pipes_are_left_out_of_a_copy(tmp_path: Path, folder: str) -> None:
    own = tmp_path / "volume" / folder
    (own / "empty").mkdir(parents=True)
    (own / "b").write_text("content")
    for link, target in {"absolute": "/etc/hostname", "outside": "../../../x", "inside": "b"}.items():
        (own / link).symlink_to(target)
    (own / "a folder").symlink_to("/etc", target_is_directory=True)
    os.mkfifo(own / "pipe")
    (own / "c").hardlink_to(own / "b")
    (own / "last").write_text("last")
    platform = ScriptedPlatform([], results=tmp_path / "volume")
    for _ in range(2):
        copy_results(platform, job(), tmp_path / "out", 0.0)
        found = {path.name: path for path in (tmp_path / "out" / folder).iterdir()}
        # Of two names of one file the archive has the content of one.
        assert {*found} - {"b", "c"} == {"last"}
        assert {path.read_text() for name, path in found.items() if name in "bc"} == {"content"}
        assert not any(path.is_symlink() for path in found.values())
