"""A broken TFRecord is reported with its file, of which TensorFlow's error has only the position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tensorflow as tf
from support.program_samples import sample_job

from psfleet.errors import ProgramError
from worker_service.examples_in_memory import in_memory
from worker_service.input_pipeline import read

NUM_RECORDS = 50
RECORD = b"x" * 20


def written(path: Path, compression: str = "") -> str:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for _ in range(NUM_RECORDS):
            writer.write(RECORD)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Three files, the second of which has a record with a wrong checksum."""
    found = [written(tmp_path / f"part-{number}.tfrecord") for number in range(3)]
    content = bytearray(Path(found[1]).read_bytes())
    content[len(content) // 2] ^= 1
    Path(found[1]).write_bytes(content)
    return found


Make = Callable[[Sequence[str]], tf.data.Dataset]


def plain(files: Sequence[str]) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(files)


def interleaved(files: Sequence[str]) -> tf.data.Dataset:
    pattern = str(Path(files[0]).parent / "*.tfrecord")
    records = tf.data.Dataset.list_files(pattern, shuffle=False).interleave(tf.data.TFRecordDataset)
    return records.map(tf.strings.length).batch(4).prefetch(2)


@pytest.mark.parametrize("make", [plain, interleaved])
def test_the_file_of_a_broken_record_is_named(files: list[str], make: Make) -> None:
    with pytest.raises(ProgramError, match=r"corrupted record at \d+") as raised:
        list(read(make(files), sample_job(), "reading the training data of shard 0"))
    assert str(raised.value).endswith(f" of {files[1]}")
    assert "\n" not in str(raised.value)


def test_it_is_named_when_examples_are_read_into_memory(files: list[str]) -> None:
    with pytest.raises(ProgramError) as raised:
        in_memory(plain(files), sample_job(), 0)
    assert str(raised.value).endswith(f" of {files[1]}")


def test_compressed_files_that_are_whole_are_not_blamed(tmp_path: Path) -> None:
    """Nor is a file of another kind, such as a vocabulary."""
    words = tmp_path / "words.txt"
    words.write_text("no records\n" * 100)
    whole, cut = (written(tmp_path / name, "GZIP") for name in ("whole", "cut"))
    Path(cut).write_bytes(Path(cut).read_bytes()[:-20])

    def make() -> tf.data.Dataset:
        lines = tf.data.TextLineDataset(str(words)).take(1)
        return lines.concatenate(tf.data.TFRecordDataset([whole, cut], "GZIP"))

    with pytest.raises(ProgramError) as raised:
        list(read(make(), sample_job(), "reading"))
    assert not str(raised.value).endswith((str(words), whole))
