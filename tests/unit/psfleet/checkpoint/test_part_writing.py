"""A part as bytes: the same in memory, in blocks and in its file, and written only if it is what was announced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.checkpoint_samples import contents, sample_layout

from psfleet.checkpoint.part_writing import EncodedPart, encode_part, write_chunks, write_part
from psfleet.checkpoint.parts import PartRecord

LAYOUT = sample_layout()


@pytest.fixture
def part() -> EncodedPart:
    return encode_part(1, LAYOUT, contents(LAYOUT, 3)[1], 7, 2, "run")


@pytest.mark.parametrize("num_bytes", [1, 7, 1024, 10**6])
def test_a_part_in_blocks_is_the_part_in_its_file(tmp_path: Path, part: EncodedPart, num_bytes: int) -> None:
    written = write_part(tmp_path / "whole", 1, LAYOUT, contents(LAYOUT, 3)[1], 7, 2, "run")
    blocks = list(part.blocks(num_bytes))
    assert {len(block) for block in blocks[:-1]} <= {num_bytes}
    assert write_chunks(tmp_path / "blocks", part.file, blocks) == written == part.record()
    files = [(tmp_path / folder / part.file).read_bytes() for folder in ("whole", "blocks")]
    assert files[0] == files[1]


def test_a_part_that_is_not_what_was_announced_leaves_no_file(tmp_path: Path, part: EncodedPart) -> None:
    def refuse(record: PartRecord) -> None:
        raise ValueError(f"{record.num_bytes} bytes")

    with pytest.raises(ValueError, match="3 bytes"):
        write_chunks(tmp_path, part.file, [b"abc"], refuse)
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_part_do_not_change_each_others_file(tmp_path: Path, part: EncodedPart) -> None:
    """A chief that was replaced continues to write when it is thawed."""
    blocks = list(part.blocks(64))

    def older() -> Iterator[bytes]:
        yield blocks[0]
        assert write_chunks(tmp_path, part.file, blocks) == part.record()
        raise OSError("replaced")

    with pytest.raises(OSError, match="replaced"):
        write_chunks(tmp_path, part.file, older())
    assert [path.name for path in tmp_path.iterdir()] == [part.file]
    assert (tmp_path / part.file).read_bytes() == b"".join(blocks)


def test_the_wait_for_a_chunk_is_no_use_of_the_disk(tmp_path: Path, part: EncodedPart) -> None:
    """A frozen ps must not look like a disk that does not answer."""
    uses, total = 0, 0

    @contextmanager
    def access() -> Iterator[None]:
        nonlocal uses, total
        uses, total = uses + 1, total + 1
        yield
        uses -= 1

    def chunks() -> Iterator[bytes]:
        for block in part.blocks(256):
            assert uses == 0
            yield block

    write_chunks(tmp_path, part.file, chunks(), access=access)
    assert total > len(list(part.blocks(256))), "each chunk, the folder, and the end of the file"
