"""Reads examples from files of four formats: CSV, fixed-length records, TFRecord and lines of text."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

NUM_PIXELS = 64
"""Of an image, in all formats but `records`, whose files say it."""
MAX_SHOWN = 40
"""Characters of a bad line in a message."""
UNSIGNED_BYTE = 0x08
"""The idx format's code of an element type."""
FEATURES = {"pixels": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
"""Of a `tf.train.Example` in TFRecord files; `pixels` has one byte for each."""

IMAGES_TO_LABELS = ("images-idx3", "labels-idx1")
"""In the name of a file of images, for that of its labels."""

Example = tuple[tf.Tensor, tf.Tensor]
"""Pixels [pixels] float32 and label [] int64."""


Read = Callable[[tf.Tensor], tf.data.Dataset]
"""Returns the examples of the file with a path, a scalar string tensor."""


def examples(folder: Path, format: str, part: str, shard: int = 0, num_shards: int = 1) -> tf.data.Dataset:
    """The examples of a shard: of its files, or of all files if there are fewer files than shards.

    Args:
        part: `train` or `test`.

    Raises:
        FileNotFoundError: The folder has no such files.
        ValueError: One of the files is not whole.
    """
    chosen = FORMATS[format]
    names = chosen.train if part == "train" else chosen.test
    paths = sorted(folder.glob(names))
    if not paths:
        raise FileNotFoundError(f"{folder} has no file {names}, expected those that write.py makes")
    if len(paths) < num_shards:
        return chosen.examples(paths).shard(num_shards, shard)
    return chosen.examples(paths[shard::num_shards])


def interleaved(paths: Sequence[Path], read: Read) -> tf.data.Dataset:
    """Of files that are read in parallel: the first example of each, then the second, always in this order."""
    files = tf.data.Dataset.from_tensor_slices([str(path) for path in paths])
    return files.interleave(read, cycle_length=len(paths), num_parallel_calls=len(paths), deterministic=True)


def csv_examples(paths: Sequence[Path]) -> tf.data.Dataset:
    """Of lines with the pixels and the label, separated by commas."""
    return interleaved(paths, read_csv)


def read_csv(path: tf.Tensor) -> tf.data.Dataset:
    """Of one file."""

    def parsed(number: tf.Tensor, line: tf.Tensor) -> Example:
        is_valid = tf.strings.regex_full_match(line, rf"\d+(,\d+){{{NUM_PIXELS}}}")
        checked = checked_line(is_valid, path, number, line, f"{NUM_PIXELS + 1} whole numbers")
        *pixels, label = tf.io.decode_csv(checked, [tf.constant([], tf.int64)] * (NUM_PIXELS + 1))
        return tf.cast(tf.stack(pixels), tf.float32), label

    return tf.data.TextLineDataset(path).enumerate(1).map(parsed)


def text_examples(paths: Sequence[Path]) -> tf.data.Dataset:
    """Of lines `LABEL PIXEL:VALUE PIXEL:VALUE ...`, as of svmlight; pixels count from 1, and those left out are 0."""
    return interleaved(paths, read_text)


def read_text(path: tf.Tensor) -> tf.data.Dataset:
    """Of one file."""

    def parsed(number: tf.Tensor, line: tf.Tensor) -> Example:
        is_valid = tf.strings.regex_full_match(line, r"\d+( \d+:\d+)*")
        checked = checked_line(is_valid, path, number, line, "LABEL PIXEL:VALUE ...")
        words = tf.strings.split(checked)
        pairs = tf.strings.to_number(tf.strings.split(words[1:], ":").to_tensor(shape=[None, 2]), tf.int64)
        are_pixels = tf.reduce_all((pairs[:, 0] >= 1) & (pairs[:, 0] <= NUM_PIXELS))
        with tf.control_dependencies([checked_line(are_pixels, path, number, line, f"pixels 1 to {NUM_PIXELS}")]):
            pixels = tf.scatter_nd(pairs[:, :1] - 1, tf.cast(pairs[:, 1], tf.float32), [NUM_PIXELS])
        return pixels, tf.strings.to_number(words[0], tf.int64)

    return tf.data.TextLineDataset(path).enumerate(1).map(parsed)


def checked_line(is_valid: tf.Tensor, path: tf.Tensor, number: tf.Tensor, line: tf.Tensor, expected: str) -> tf.Tensor:
    """The line, if it is valid; otherwise reading fails with the file, the number of the line and what was expected."""
    shown = tf.strings.substr(line, 0, MAX_SHOWN)
    message = tf.strings.join([path, ":", tf.strings.as_string(number), f": expected {expected}, found ", shown])
    with tf.control_dependencies([tf.debugging.Assert(is_valid, [message])]):
        return tf.identity(line)


def tfrecord_examples(paths: Sequence[Path]) -> tf.data.Dataset:
    """Of records with a `tf.train.Example` each."""
    for path in paths:
        check_tfrecord(path)
    return interleaved(paths, read_tfrecord)


def read_tfrecord(path: tf.Tensor) -> tf.data.Dataset:
    """Of one file."""

    def parsed(record: tf.Tensor) -> Example:
        found = tf.io.parse_single_example(record, FEATURES)
        pixels = tf.cast(tf.io.decode_raw(found["pixels"], tf.uint8), tf.float32)
        return tf.ensure_shape(pixels, [NUM_PIXELS]), found["label"]

    return tf.data.TFRecordDataset(path).map(parsed)


def check_tfrecord(path: Path) -> None:
    """Raises ValueError if a file ends in the middle of a record; TensorFlow would not say in which file that is.

    A record has its length in 8 bytes, a checksum of it, its content, and a checksum of that; checksums have 4 bytes.
    """
    size, start = path.stat().st_size, 0
    with path.open("rb") as file:
        while start < size:
            file.seek(start)
            end = start + int.from_bytes(file.read(8), "little") + 16
            if end > size:
                raise ValueError(f"{path} has {size} bytes, expected {end} for the record at byte {start}")
            start = end


def record_examples(paths: Sequence[Path]) -> tf.data.Dataset:
    """Of idx files of images, whose records have a fixed length, and the files with their labels beside them."""
    sizes = [idx_shape(path, num_axes=3) for path in paths]
    for path, (count, *side) in zip(paths, sizes, strict=True):
        labels = labels_path(path)
        if idx_shape(labels, num_axes=1) != [count]:
            raise ValueError(f"{labels} has {idx_shape(labels, num_axes=1)[0]} labels, expected {count}")
        if side != sizes[0][1:]:
            raise ValueError(f"{path} has images of size {side}, expected {sizes[0][1:]} as in {paths[0]}")
    return interleaved(paths, functools.partial(read_records, num_pixels=math.prod(sizes[0][1:])))


def read_records(path: tf.Tensor, num_pixels: int) -> tf.data.Dataset:
    """Of one file."""

    def parsed(image: tf.Tensor, label: tf.Tensor) -> Example:
        pixels = tf.io.decode_raw(image, tf.uint8)
        return tf.cast(tf.ensure_shape(pixels, [num_pixels]), tf.float32), tf.cast(
            tf.io.decode_raw(label, tf.uint8)[0], tf.int64
        )

    images = tf.data.FixedLengthRecordDataset(path, num_pixels, header_bytes=idx_header_bytes(3))
    labels = tf.strings.regex_replace(path, *IMAGES_TO_LABELS)
    return tf.data.Dataset.zip(
        (images, tf.data.FixedLengthRecordDataset(labels, 1, header_bytes=idx_header_bytes(1)))
    ).map(parsed)


def labels_path(images: Path) -> Path:
    """The file with the labels of a file of images."""
    return images.with_name(images.name.replace(*IMAGES_TO_LABELS))


def idx_header_bytes(num_axes: int) -> int:
    """Two zero bytes, the type of the elements, the number of axes, and their sizes in four bytes each."""
    return 4 + 4 * num_axes


def idx_shape(path: Path, num_axes: int) -> list[int]:
    """The sizes in the header of an idx file of bytes.

    Raises:
        ValueError: It has another header, or its length is another one than the header says.
    """
    with path.open("rb") as file:
        header = file.read(idx_header_bytes(num_axes))
    if header[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]) or len(header) < idx_header_bytes(num_axes):
        raise ValueError(f"{path} is no idx file of bytes with {num_axes} axes")
    shape = [int(size) for size in np.frombuffer(header, ">u4", offset=4)]
    size, expected = path.stat().st_size, len(header) + math.prod(shape)
    if size != expected:
        raise ValueError(f"{path} has {size} bytes, expected {expected} for the shape {shape}")
    return shape


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        train: Pattern of the names of files with training examples.
        test: The same of test examples.
        examples: Returns the examples of some files.
    """

    train: str
    test: str
    examples: Callable[[Sequence[Path]], tf.data.Dataset]


FORMATS = {
    "csv": Format("train-*.csv", "test-*.csv", csv_examples),
    # Also the names of MNIST's own files.
    "records": Format("train*-images-idx3-ubyte", "t10k*-images-idx3-ubyte", record_examples),
    "tfrecord": Format("train-*.tfrecord", "test-*.tfrecord", tfrecord_examples),
    "text": Format("train-*.txt", "test-*.txt", text_examples),
}
