"""Buckets cover each shard, and each has the parameters of one loss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psfleet.layout import Layout, TensorSpec
from psfleet.layout.buckets import buckets, loss_order, loss_ranges, offsets_of_loss, specs_of_loss

SIZES = st.lists(st.integers(1, 90), min_size=1, max_size=5)


def layout_of(sizes: list[list[int]], num_ps: int, bucket_bytes: int = 128) -> Layout:
    """A layout of losses whose tensors have these sizes; a list of one list is a single loss."""
    specs = [TensorSpec(f"{loss}/{at}", (size,)) for loss, own in enumerate(sizes) for at, size in enumerate(own)]
    losses = tuple((f"loss_{loss}", len(own)) for loss, own in enumerate(sizes)) if len(sizes) > 1 else ()
    return Layout.plan(specs, (), (), num_ps, bucket_bytes, losses=losses)


@given(st.lists(SIZES, min_size=2, max_size=4), st.integers(1, 3))
def test_the_buckets_of_all_shards_are_the_vector_and_no_tensor_is_in_a_bucket_of_another_loss(
    sizes: list[list[int]], num_ps: int
) -> None:
    layout = layout_of(sizes, num_ps).parameters
    found = [bucket for shard in range(num_ps) for bucket in buckets(layout, shard)]
    assert [bucket.start for bucket in found] == [0, *(bucket.stop for bucket in found[:-1])]
    assert found[-1].stop == layout.size
    assert max(bucket.size for bucket in found) <= layout.bucket_size
    for loss in range(len(sizes)):
        covered = {at for bucket in found if bucket.loss == loss for at in range(bucket.start, bucket.stop)}
        pairs = zip(specs_of_loss(layout, loss), offsets_of_loss(layout, loss), strict=True)
        assert all(spec.name.startswith(f"{loss}/") for spec in specs_of_loss(layout, loss))
        assert covered >= {at for spec, offset in pairs for at in range(offset, offset + spec.size)}


@given(SIZES, st.integers(1, 3))
def test_with_one_loss_all_buckets_are_equal(sizes: list[int], num_ps: int) -> None:
    layout = layout_of([sizes], num_ps).parameters
    assert loss_ranges(layout) == [(0, layout.size)]
    for shard in range(num_ps):
        found = buckets(layout, shard)
        assert {(bucket.size, bucket.loss) for bucket in found} == {(layout.bucket_size, 0)}
        assert len(found) == layout.buckets_per_shard


def test_losses_survive_the_way_to_a_ps_and_are_in_no_checkpoint() -> None:
    layout = layout_of([[20], [3, 4]], 2)
    assert Layout.from_dict(layout.to_dict()) == layout
    assert layout.digest() != layout.saved.digest()
    assert "losses" not in layout.saved.to_dict()
    assert "losses" not in layout_of([[20]], 2).to_dict()


def test_the_order_of_the_losses_is_that_of_the_job() -> None:
    layout = layout_of([[1], [1]], 1).parameters
    assert loss_order(layout, ["loss_1", "loss_0", "loss_1"]) == (1, 0, 1)
    assert loss_order(layout_of([[1]], 1).parameters, None) == (0,)
