"""An invalid manifest is refused, and the error names the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoint_samples import (
    save,
)

from psfleet.checkpoint.manifest import read_manifest
from psfleet.errors import NoCheckpointError
from psfleet.layout import Layout


def _set(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("step", to="10"), "step"),
        (_set("step", to=-1), "step"),
        (_set("step", to=11), "step 11 of generation 1"),
        (_set("format_version", to="2"), "format_version"),
        (_set("parts", to={}), "parts"),
        (_set("parts", 0, to=None), "parts.0"),
        (_set("parts", 0, "file", to="../00000010-g1/ps-0-of-2.safetensors"), "has a part named '../00000010"),
        (_set("parts", 0, "file", to="ps-1-of-2.safetensors"), "has a part named 'ps-1"),
        (_set("parts", 0, "num_bytes", to=5), "bytes, expected 5"),
        (_set("parts", 0, "sha256", to="short"), "sha256"),
        (_set("slots", to=["a/b"]), "slots.0"),
        (_set("layout", "num_ps", to=0), "num_ps"),
        (_set("layout", "num_ps", to=10**12), "layout_digest"),
        (_set("layout", "parameters", 0, to=["x"]), "parameters.0"),
        (_set("layout", "parameters", 0, to=["x", [-1], "float32"]), "parameters.0"),
        (_set("layout", "parameters", 0, to=["x", [1], "object"]), "dtype 'object'"),
        (_set("layout", "parameters", 0, to=["x", [1], "int64"]), "expected float32"),
        (_set("layout", "parameters", 0, to=["seen", [1], "float32"]), "tensor 'seen' occurs twice"),
        (_set("layout", "parameters", 0, to=["dense/kernel", [5, 7], "float32"]), "layout_digest"),
        (_set("extra", to=[]), "extra"),
        (_set("surprise", to=1), "surprise"),
    ],
)
def test_an_invalid_manifest_is_refused_with_its_folder_and_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    folder = save(tmp_path, 10).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(NoCheckpointError) as caught:
        read_manifest(folder)
    assert str(folder) in str(caught.value)
    assert problem in str(caught.value)


def test_a_manifest_with_tensors_larger_than_its_files_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 10).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["layout"]["parameters"][0][1] = [10**9, 10**9]
    manifest["layout_digest"] = Layout.from_dict(manifest["layout"]).digest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(NoCheckpointError, match=r"expected at least .* for its layout"):
        read_manifest(folder)


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
    lambda value: json.dumps(value).encode()
))  # fmt: skip
def test_any_bytes_as_a_manifest_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "00000010-g1"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(NoCheckpointError, match="00000010-g1"):
        read_manifest(folder)
