"""Embedding tables in checkpoints: any number of ps reads them, as parts or as a stream; other tables are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoint_samples import contents, sample_layout

from psfleet.checkpoint.export import export_safetensors
from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, read_manifest, write_manifest
from psfleet.checkpoint.part_tables import ReceivedTables, StoredTables
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.replacement import write_replaced
from psfleet.checkpoint.tensors import check_tensors, open_shard, read_shard, read_tables, read_tensors, read_values
from psfleet.errors import BadJobError, NoCheckpointError
from psfleet.layout import EmbeddingContent, EmbeddingSpec, Layout, TensorSpec, initial_rows

USER = EmbeddingSpec("user", "user/embeddings", rows=20, width=3, init="uniform", scale=0.5, seed=1)
ITEM = EmbeddingSpec("item", "item/embeddings", rows=5, width=1, init="zeros", scale=1.0, seed=1, is_hashed=True)
IDS = np.array([13, 2, 19, 4, 7, 3])
CHUNK_BYTES = 16


def layout_of(num_ps: int, *tables: EmbeddingSpec) -> Layout:
    return replace(sample_layout(num_ps), embeddings=tables or (USER, ITEM))


def rows_of(ids: np.ndarray) -> EmbeddingContent:
    values = np.stack([ids, ids + 0.25, ids + 0.5], 1).astype(np.float32)
    return EmbeddingContent(ids, values, {"m": -values})


def saved(root: Path, num_ps: int) -> Checkpoint:
    """A checkpoint in which six rows of one table were updated, and none of the other."""
    layout, folder, parts = layout_of(num_ps), checkpoint_folder(root, 3, 1), []
    for shard, content in enumerate(contents(layout, 0)):
        tables = {USER.name: rows_of(IDS[IDS % num_ps == shard]), ITEM.name: EmbeddingContent.empty(ITEM.width)}
        parts.append(write_part(folder, shard, layout, replace(content, tables=tables), 3, 1, "run"))
    values = {"run": "run", "step": 3, "generation": 1, "optimizer": "adam", "slots": ["m", "v"], "extra": {}}
    write_manifest(folder, layout, parts, **values)  # type: ignore[arg-type]
    return read_manifest(folder)


def assert_rows(found: EmbeddingContent, ids: np.ndarray) -> None:
    order, expected = np.argsort(found.ids), rows_of(np.sort(ids))
    np.testing.assert_array_equal(found.ids[order], expected.ids)
    np.testing.assert_array_equal(found.rows[order], expected.rows)
    if len(ids):
        np.testing.assert_array_equal(found.slots["m"][order], expected.slots["m"])


@pytest.mark.parametrize(("num_ps", "restored_ps"), [(1, 3), (3, 1), (3, 2), (2, 2)])
def test_any_number_of_ps_reads_its_rows(num_ps: int, restored_ps: int, tmp_path: Path) -> None:
    checkpoint, layout = saved(tmp_path, num_ps), layout_of(restored_ps)
    for shard in range(restored_ps):
        own = IDS[IDS % restored_ps == shard]
        found = read_shard(checkpoint, layout, shard).tables
        assert_rows(found[USER.name], own)
        assert not len(found[ITEM.name].ids)
        received = ReceivedTables(layout.embeddings)
        with open_shard(checkpoint, layout, shard) as reader:
            for vector, start, values in reader.ranges(CHUNK_BYTES):
                if vector.startswith("table/"):
                    assert values.nbytes <= CHUNK_BYTES
                    assert received.put(vector, start, values.tobytes())
        assert_rows(received.contents()[USER.name], own)


def test_an_export_has_all_rows_and_an_evaluation_those_that_were_updated(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 2)
    assert USER.name not in read_tensors(checkpoint)
    export_safetensors(checkpoint, tmp_path / "all.safetensors")
    expected = initial_rows(USER, np.arange(USER.rows))
    expected[IDS] = rows_of(IDS).rows
    found = load_file(tmp_path / "all.safetensors")
    np.testing.assert_array_equal(found[USER.name], expected)
    np.testing.assert_array_equal(found[ITEM.name], np.zeros((ITEM.rows, ITEM.width), np.float32))
    values = read_values(checkpoint)
    np.testing.assert_array_equal(values[f"{USER.name}#ids"], np.sort(IDS))
    np.testing.assert_array_equal(values[f"{USER.name}#rows"], rows_of(np.sort(IDS)).rows)


def test_a_checkpoint_with_other_weights_keeps_the_rows(tmp_path: Path) -> None:
    bias = np.arange(5, dtype=np.float32)
    made = write_replaced(saved(tmp_path, 2), {"dense/bias": bias}, generation=2, run="run", extra={})
    np.testing.assert_array_equal(read_tensors(made)["dense/bias"], bias)
    assert_rows(read_tables(made)[USER.name], IDS)


def test_with_the_same_number_of_ps_each_reads_the_rows_of_its_own_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore would otherwise read all rows as often as there are ps."""
    checkpoint, reads, read = saved(tmp_path, 3), [], StoredTables.read

    def counted(stored: StoredTables, shard: int, num_ps: int) -> dict[str, EmbeddingContent]:
        reads.append(stored)
        return read(stored, shard, num_ps)

    monkeypatch.setattr(StoredTables, "read", counted)
    assert_rows(read_shard(checkpoint, layout_of(3), 1).tables[USER.name], IDS[IDS % 3 == 1])
    assert len(reads) == 1
    assert_rows(read_shard(checkpoint, layout_of(2), 1).tables[USER.name], IDS[IDS % 2 == 1])
    assert len(reads) == 1 + 3


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ((USER,), "table 'item/embeddings' is item, 5 x 1, hashed, zeros 1 of seed 1 in checkpoint"),
        ((replace(USER, rows=21), ITEM), "and user, 21 x 3, uniform 0.5 of seed 1 in the job"),
        ((replace(USER, is_hashed=True), ITEM), "and user, 20 x 3, hashed, uniform 0.5 of seed 1 in the job"),
        ((replace(USER, seed=2), ITEM), "and user, 20 x 3, uniform 0.5 of seed 2 in the job"),
    ],
)
def test_other_tables_are_refused(tables: tuple[EmbeddingSpec, ...], expected: str, tmp_path: Path) -> None:
    with pytest.raises(BadJobError) as refused:
        read_shard(saved(tmp_path, 2), layout_of(2, *tables), 0)
    assert expected in str(refused.value)


def test_a_table_that_the_job_does_not_name_any_more_is_refused_as_a_table(tmp_path: Path) -> None:
    layout = layout_of(2, USER)
    dense = TensorSpec(ITEM.name, (ITEM.rows, ITEM.width))
    parameters = Layout.plan([*layout.parameters.specs, dense], [], [], num_ps=2, bucket_bytes=1 << 20).parameters
    with pytest.raises(BadJobError, match=r"table 'item/embeddings' is item, 5 x 1, hashed, .* and missing in the job"):
        check_tensors(saved(tmp_path, 2), replace(layout, parameters=parameters))


@pytest.mark.parametrize(
    ("key", "array", "expected"),
    [
        ("table/ids/user/embeddings", np.array([1, 20]), "has rows of"),
        ("table/ids/user/embeddings", np.array([1, 2, 3, 4, 5, 2]), "has a row twice, expected each id once"),
        ("table/ids/other", np.array([1]), "key 'table/ids/other', I64 [1], is not in the manifest's layout"),
        ("table/rows/user/embeddings", np.zeros((2, 4), np.float32), "F32 [2, 4], is not in the manifest's layout"),
        ("table/ids/item/embeddings", np.array([5]), "has rows of {'ids': 1, 'rows': 0}"),
    ],
)
def test_a_part_with_other_arrays_is_invalid(key: str, array: np.ndarray, expected: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 1)
    (part,) = checkpoint.parts
    path = tmp_path / checkpoint.folder.name / part.file
    metadata = {"format_version": "1", "run": "run", "step": "3", "generation": "1", "shard": "0", "num_ps": "1"}
    save_file({**load_file(path), key: array}, path, metadata)
    with pytest.raises(NoCheckpointError) as refused:
        read_tables(checkpoint)
    assert expected in str(refused.value)


@pytest.mark.parametrize(("key", "start"), [("table/ids/other", 0), ("table/ids/user/embeddings", 1), ("m", 0)])
def test_a_range_that_does_not_follow_is_refused(key: str, start: int) -> None:
    assert not ReceivedTables([USER]).put(key, start, bytes(8))
