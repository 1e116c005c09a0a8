"""Exports of tables take memory for blocks of rows, and restores for the rows of one ps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from support.checkpoint_samples import contents, sample_layout
from support.peak_memory import peak_bytes

from psfleet.checkpoint.dense_export import require_memory
from psfleet.checkpoint.export import export, export_safetensors
from psfleet.checkpoint.location import Folder
from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, read_manifest, write_manifest
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.tensors import read_shard
from psfleet.errors import UsageError
from psfleet.layout import EmbeddingContent, EmbeddingSpec, initial_rows

ROWS, WIDTH = 400_000, 32
TABLE = EmbeddingSpec("user", "user/embeddings", ROWS, WIDTH, init="uniform", scale=0.5, seed=1)
TABLE_BYTES = ROWS * WIDTH * 4
NUM_PS, NUM_UPDATED = 2, 150_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """One of 2 ps, in which three eighths of the rows were updated, in any order, to ten times their number."""
    layout = replace(sample_layout(NUM_PS), embeddings=(TABLE,))
    folder, parts = checkpoint_folder(tmp_path_factory.mktemp("run"), 3, 1), []
    updated = np.random.default_rng(0).permutation(ROWS)[:NUM_UPDATED]
    for shard, content in enumerate(contents(layout, 0)):
        ids = updated[updated % NUM_PS == shard]
        rows = np.broadcast_to((ids * 10).astype(np.float32)[:, None], (len(ids), WIDTH)).copy()
        tables = {TABLE.name: EmbeddingContent(ids, rows, {"m": rows, "v": rows})}
        parts.append(write_part(folder, shard, layout, replace(content, tables=tables), 3, 1, "run"))
    values = {"run": "run", "step": 3, "generation": 1, "optimizer": "adam", "slots": ["m", "v"], "extra": {}}
    write_manifest(folder, layout, parts, **values)  # type: ignore[arg-type]
    return read_manifest(folder)


def test_an_export_has_every_row_at_its_place_and_never_the_whole_table_in_memory(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    out = tmp_path / "all.safetensors"
    assert peak_bytes(lambda: export_safetensors(checkpoint, out)) < 0.8 * TABLE_BYTES
    with safe_open(out, framework="numpy") as file:
        assert file.metadata() == {"run": "run", "step": "3"}
        found = file.get_tensor(TABLE.name)
    updated = np.random.default_rng(0).permutation(ROWS)[:NUM_UPDATED]
    expected = initial_rows(TABLE, np.arange(ROWS))
    expected[updated] = (updated * 10).astype(np.float32)[:, None]
    np.testing.assert_array_equal(found, expected)


def test_a_ps_of_another_number_of_ps_takes_memory_for_its_own_rows(checkpoint: Checkpoint) -> None:
    layout = replace(sample_layout(8), embeddings=(TABLE,))
    own_bytes = 3 * NUM_UPDATED * WIDTH * 4 / 8
    found = []
    peak = peak_bytes(lambda: found.append(read_shard(checkpoint, layout, 3).tables[TABLE.name]))
    assert sorted(found[0].slots) == ["m", "v"]
    assert set(found[0].ids % 8) == {3}
    # Its rows of each part, and then those of both; a part has four times as many.
    assert peak < 3.5 * own_bytes


def test_a_keras_format_that_memory_has_no_room_for_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    require_memory(checkpoint, tmp_path / "a.keras", 2 * TABLE_BYTES)
    with pytest.raises(UsageError) as refused:
        require_memory(checkpoint, tmp_path / "a.keras", 2 * TABLE_BYTES - 1)
    assert "a.keras needs 0.1 GiB of memory for the embedding tables" in str(refused.value)
    assert "expected --out *.safetensors, which is written in blocks" in str(refused.value)


def _checkpoint_with(table: EmbeddingSpec, root: Path) -> Folder:
    """Of a table no row of which was updated."""
    layout = replace(sample_layout(1), embeddings=(table,))
    (content,) = contents(layout, 0)
    folder = checkpoint_folder(root, 3, 1)
    parts = [write_part(folder, 0, layout, content, 3, 1, "run")]
    values = {"run": "run", "step": 3, "generation": 1, "optimizer": "adam", "slots": ["m", "v"], "extra": {}}
    write_manifest(folder, layout, parts, **values)  # type: ignore[arg-type]
    return folder


def test_the_export_of_a_table_larger_than_memory_is_refused_before_the_model_is_built(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"needs 238418\.6 GiB of memory for the embedding tables, and this machine has"
    ):
        export(_checkpoint_with(replace(TABLE, rows=10**12), tmp_path), tmp_path / "a.keras")


def test_a_keras_model_that_would_not_hash_ids_is_refused_and_the_rows_are_not(tmp_path: Path) -> None:
    folder = _checkpoint_with(replace(TABLE, rows=50, is_hashed=True), tmp_path)
    with pytest.raises(
        UsageError, match=r"a\.keras: tables\.user\.hash is true, and an exported model would read other"
    ):
        export(folder, tmp_path / "a.keras")
    assert export(folder, tmp_path / "a.safetensors") > 0
