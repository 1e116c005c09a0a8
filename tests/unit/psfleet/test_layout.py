"""The layout cuts any set of tensors into equal shards and gives every tensor back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psfleet.layout import ALIGNMENT_BYTES, FlatLayout, Layout, TensorSpec, state_order

DTYPES = ("float32", "float64", "int64", "uint32", "uint8", "bool")
SHAPES = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), max_size=6)


def _values(specs: tuple[TensorSpec, ...], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {spec.name: generator.integers(0, 2, spec.shape).astype(spec.dtype) for spec in specs}


@st.composite
def parameter_layouts(draw: st.DrawFn) -> FlatLayout:
    specs = tuple(TensorSpec(f"layer/{i}", shape) for i, shape in enumerate(draw(SHAPES)))
    return FlatLayout(specs, draw(st.integers(1, 5)), draw(st.integers(1, 4)))


@st.composite
def state_layouts(draw: st.DrawFn) -> FlatLayout:
    shapes = draw(SHAPES)
    specs = tuple(TensorSpec(f"s/{i}", shape, draw(st.sampled_from(DTYPES))) for i, shape in enumerate(shapes))
    return FlatLayout(specs, draw(st.integers(1, 5)), unit_dtype="uint8")


LAYOUTS = parameter_layouts() | state_layouts()


@given(LAYOUTS, st.integers(0, 2**32))
def test_unpack_gives_back_what_pack_took(layout: FlatLayout, seed: int) -> None:
    values = _values(layout.specs, seed)
    unpacked = layout.unpack(layout.pack(values))
    assert list(unpacked) == [spec.name for spec in layout.specs]
    for spec in layout.specs:
        assert unpacked[spec.name].dtype == spec.dtype
        np.testing.assert_array_equal(unpacked[spec.name], values[spec.name], strict=True)


@given(LAYOUTS)
def test_shards_are_equal_and_hold_every_tensor(layout: FlatLayout) -> None:
    assert layout.size == layout.num_shards * layout.shard_size
    assert layout.shard_size == layout.buckets_per_shard * layout.bucket_size
    assert layout.pack(_values(layout.specs, 0)).shape == (layout.size,)


@given(LAYOUTS)
def test_the_tail_is_shorter_than_one_alignment_per_bucket(layout: FlatLayout) -> None:
    ends = [
        offset + spec.num_bytes // np.dtype(layout.unit_dtype).itemsize
        for offset, spec in zip(layout.offsets, layout.specs, strict=True)
    ]
    num_buckets = layout.num_shards * layout.buckets_per_shard
    tail_bytes = (layout.size - max(ends, default=0)) * np.dtype(layout.unit_dtype).itemsize
    assert 0 <= tail_bytes < num_buckets * ALIGNMENT_BYTES


@given(LAYOUTS, st.integers(0, 2**32))
def test_the_pieces_of_all_shards_tile_each_tensor(layout: FlatLayout, seed: int) -> None:
    vector = layout.pack(_values(layout.specs, seed))
    whole = layout.unpack(vector)
    found: dict[str, list[np.ndarray]] = {spec.name: [] for spec in layout.specs}
    reached = dict.fromkeys(found, 0)
    for shard in range(layout.num_shards):
        held = vector[shard * layout.shard_size : (shard + 1) * layout.shard_size]
        for piece in layout.pieces(shard):
            assert piece.start == reached[piece.spec.name]
            reached[piece.spec.name] = piece.stop
            found[piece.spec.name].append(held[piece.at : piece.at + piece.stop - piece.start])
    for name, pieces in found.items():
        assert b"".join(piece.tobytes() for piece in pieces) == whole[name].tobytes()


@given(LAYOUTS)
def test_each_tensor_and_each_bucket_starts_at_an_aligned_byte(layout: FlatLayout) -> None:
    unit_bytes = np.dtype(layout.unit_dtype).itemsize
    assert all(offset * unit_bytes % ALIGNMENT_BYTES == 0 for offset in (*layout.offsets, layout.bucket_size))


@given(parameter_layouts(), state_layouts(), st.integers(1, 5), st.integers(4, 400))
def test_a_plan_survives_json_and_keeps_its_digest(
    parameters: FlatLayout, state: FlatLayout, num_ps: int, bucket_bytes: int
) -> None:
    layout = Layout.plan(parameters.specs, state.specs, (), num_ps, bucket_bytes)
    again = Layout.from_dict(json.loads(json.dumps(layout.to_dict())))
    assert again == layout
    assert again.digest() == layout.digest()


@given(state_layouts())
def test_the_ranges_of_state_cover_each_shard_and_cut_no_element(state: FlatLayout) -> None:
    layout = Layout.plan((), state.specs, (), state.num_shards, 4096)
    for shard in range(layout.num_ps):
        ranges = layout.state_ranges(shard)
        ends = [0, *(part.stop for part in ranges)]
        assert [part.start for part in ranges] == ends[:-1]
        assert ends[-1] == (layout.state.shard_size if list(layout.state.pieces(shard)) else 0)
        assert all(end % ALIGNMENT_BYTES == 0 for end in ends)
        for piece in layout.state.pieces(shard):
            (part,) = [part for part in ranges if part.start <= piece.at < part.stop]
            assert piece.at + piece.stop - piece.start <= part.stop
            assert part.float_dtype == (piece.spec.dtype if piece.spec.dtype.startswith("float") else None)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_every_floating_point_type_is_averaged(dtype: str) -> None:
    pytest.importorskip("ml_dtypes", reason="its import makes NumPy know bfloat16")
    spec = TensorSpec("mean", (3,), dtype)
    assert spec.is_float
    assert [part.float_dtype for part in Layout.plan((), [spec], (), 1, 4096).state_ranges(0)] == [dtype]


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint32", "bool", "complex64", "string"])
def test_no_other_type_is_averaged(dtype: str) -> None:
    assert not TensorSpec("seed", (3,), dtype).is_float


@given(state_layouts())
def test_ordered_state_has_one_range_for_each_type(state: FlatLayout) -> None:
    specs = sorted(state.specs, key=state_order)
    ranges = Layout.plan((), specs, (), 1, 4096).state_ranges(0)
    types = [part.float_dtype for part in ranges]
    assert len(set(types)) == len(types)


@given(parameter_layouts(), st.integers(1, 5), st.integers(1, 10).map(lambda units: ALIGNMENT_BYTES * units))
def test_buckets_are_no_larger_than_asked(parameters: FlatLayout, num_ps: int, bucket_bytes: int) -> None:
    layout = Layout.plan(parameters.specs, (), (), num_ps, bucket_bytes)
    assert layout.parameters.bucket_size * 4 <= bucket_bytes


def test_the_digest_tells_shapes_names_and_number_of_ps_apart() -> None:
    def digest(name: str, shape: tuple[int, ...], num_ps: int) -> str:
        return Layout.plan([TensorSpec(name, shape)], [], [], num_ps, 4096).digest()

    layouts = [("a", (2, 3), 1), ("a", (3, 2), 1), ("b", (2, 3), 1), ("a", (2, 3), 2)]
    assert len({digest(*layout) for layout in layouts}) == len(layouts)


def test_pack_names_the_tensor_of_a_wrong_shape() -> None:
    layout = FlatLayout((TensorSpec("kernel", (2, 3)),), 1)
    with pytest.raises(ValueError, match=r"kernel has shape \[3, 2\], expected \[2, 3\]"):
        layout.pack({"kernel": np.zeros((3, 2))})


def test_pack_refuses_a_missing_tensor() -> None:
    with pytest.raises(KeyError, match="kernel"):
        FlatLayout((TensorSpec("kernel", (2,)),), 1).pack({})


def test_unpacked_tensors_are_copies() -> None:
    layout = FlatLayout((TensorSpec("kernel", (16,)),), 1)
    vector = layout.pack({"kernel": np.ones(16)})
    layout.unpack(vector)["kernel"][:] = 7
    np.testing.assert_array_equal(vector, np.ones(16))


def test_the_digest_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in every heartbeat."""
    layout, same = (Layout.plan([TensorSpec("w", (3,))], [], [], num_ps=1, bucket_bytes=4096) for _ in range(2))
    digest = layout.digest()
    assert same.digest() == digest
    monkeypatch.delattr(Layout, "to_dict")
    assert layout.digest() == digest
    assert layout == same


def test_lookup_tables_are_part_of_the_digest_and_of_no_checkpoint() -> None:
    specs = [TensorSpec("w", (3,))]
    plain, one, two = (Layout.plan(specs, [], [], 1, 4096, tables) for tables in ((), [("a", "1")], [("a", "2")]))
    assert len({plain.digest(), one.digest(), two.digest()}) == 3
    assert Layout.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert one.saved == plain
