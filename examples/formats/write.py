"""Writes the digits of examples/lenet in other formats: `python write.py [FORMAT ...] [--folder DATA]`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

DIGITS = Path(__file__).parents[1] / "lenet" / "data" / "digits.csv.gz"
"""scikit-learn's file: lines of 64 pixels, 0 to 16, and the label."""
SIDE = 8
TEST_EVERY = 5
"""Of the digits, 0, 5, 10, … are the test set."""
NUM_FILES = 4
"""With training examples."""
UNSIGNED_BYTE = 0x08

Rows = npt.NDArray[np.uint8]
"""Pixels and label: [n, 65]."""


def write_csv(path: Path, rows: Rows) -> None:
    """Lines of pixels and label, separated by commas."""
    path.with_suffix(".csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows.tolist()))


def write_text(path: Path, rows: Rows) -> None:
    """Lines of the label and the pixels that are not 0, which count from 1, as of svmlight."""
    lines = []
    for *pixels, label in rows.tolist():
        words = [f"{at}:{value}" for at, value in enumerate(pixels, 1) if value]
        lines.append(" ".join([str(label), *words]) + "\n")
    path.with_suffix(".txt").write_text("".join(lines))


def write_records(path: Path, rows: Rows) -> None:
    """Two idx files, as those of MNIST: images and labels."""
    images, labels = rows[:, :-1].reshape(-1, SIDE, SIDE), rows[:, -1]
    for array, name in ((images, "images-idx3-ubyte"), (labels, "labels-idx1-ubyte")):
        header = bytes([0, 0, UNSIGNED_BYTE, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        path.with_name(f"{path.name}-{name}").write_bytes(header + array.tobytes())


def write_tfrecord(path: Path, rows: Rows) -> None:
    """A `tf.train.Example` for each image."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path.with_suffix(".tfrecord"))) as writer:
        for row in rows:
            pixels = tf.train.Feature(bytes_list=tf.train.BytesList(value=[row[:-1].tobytes()]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(row[-1])]))
            features = tf.train.Features(feature={"pixels": pixels, "label": label})
            writer.write(tf.train.Example(features=features).SerializeToString())


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "csv": write_csv,
    "records": write_records,
    "tfrecord": write_tfrecord,
    "text": write_text,
}


def write(format: str, folder: Path) -> None:
    """Writes training and test files of a format into a folder, which is created."""
    rows = np.loadtxt(DIGITS, delimiter=",", dtype=np.uint8)
    is_test = np.arange(len(rows)) % TEST_EVERY == 0
    training = rows[~is_test]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(NUM_FILES):
        WRITERS[format](folder / f"train-{number}", training[number::NUM_FILES])
    WRITERS[format](folder / ("t10k-0" if format == "records" else "test-0"), rows[is_test])
    print(f"{folder}: {len(training)} examples in {NUM_FILES} files, and {np.sum(is_test)} to test")


def main() -> None:
    """Writes the formats of the command line, or all."""
    parser = argparse.ArgumentParser(description="Writes the digits of examples/lenet in several formats.")
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"{', '.join(WRITERS)}; none: all")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "data", help="gets a folder of each")
    arguments = parser.parse_args()
    for unknown in set(arguments.formats) - set(WRITERS):
        parser.error(f"{unknown}: expected one of {', '.join(WRITERS)}")
    for format in arguments.formats or WRITERS:
        write(format, arguments.folder / format)


if __name__ == "__main__":
    main()
