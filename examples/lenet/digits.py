"""Reads images of handwritten digits: the file in `data/`, and MNIST's idx files."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

DIGITS_FILE = Path(__file__).parent / "data" / "digits.csv.gz"
DIGITS_SIDE = 8
DIGITS_LEVELS = 16
SIDE = 28
TEST_EVERY = 5
"""Of the digits in `data/`, images 0, 5, 10, … are the test set."""

MNIST_TRAINING = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
MNIST_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNSIGNED_BYTE = 0x08
"""The idx format's code for the only element type that MNIST has."""


@dataclass(frozen=True)
class Images:
    """Images of digits and their labels.

    Attributes:
        pixels: [n, 28, 28] uint8; 0 is background, 255 is ink.
        labels: [n] int32 in 0..9.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int32]

    def shard(self, index: int, num_shards: int) -> Images:
        """The images i with i % num_shards == index."""
        return Images(self.pixels[index::num_shards], self.labels[index::num_shards])


def read_digits(path: Path = DIGITS_FILE) -> tuple[Images, Images]:
    """Reads the digits of the example: 1,437 training and 360 test images.

    Each line of the file has the 64 values in 0..16 of an 8x8 image, row by row, and the label.
    """
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    small = table[:, :-1].reshape(-1, DIGITS_SIDE, DIGITS_SIDE)
    images = Images(enlarged(small), table[:, -1].astype(np.int32))
    is_test = np.arange(len(table)) % TEST_EVERY == 0
    training, test = (Images(images.pixels[which], images.labels[which]) for which in (~is_test, is_test))
    return training, test


def enlarged(small: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Scales images [n, 8, 8] in 0..16 to [n, 28, 28] in 0..255, by bilinear interpolation between pixel centres."""
    centres = np.clip((np.arange(SIDE) + 0.5) * DIGITS_SIDE / SIDE - 0.5, 0, DIGITS_SIDE - 1)
    weights = np.maximum(0, 1 - np.abs(centres[:, np.newaxis] - np.arange(DIGITS_SIDE)))
    large = weights @ (small * (255 / DIGITS_LEVELS)) @ weights.T
    return np.round(large).astype(np.uint8)


def read_mnist(folder: str) -> tuple[Images, Images]:
    """Reads MNIST's training and test images from the four idx files in a folder.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file has another format, shape or number of images than MNIST's.
    """
    return _read_images(Path(folder), *MNIST_TRAINING), _read_images(Path(folder), *MNIST_TEST)


def _read_images(folder: Path, images_name: str, labels_name: str) -> Images:
    images_path, labels_path = _find(folder, images_name), _find(folder, labels_name)
    pixels, labels = read_idx(images_path, num_axes=3), read_idx(labels_path, num_axes=1)
    if pixels.shape[1:] != (SIDE, SIDE):
        raise ValueError(
            f"{images_path} holds images of {pixels.shape[1]}x{pixels.shape[2]} pixels, expected {SIDE}x{SIDE}"
        )
    if len(pixels) != len(labels):
        raise ValueError(f"{labels_path} holds {len(labels)} labels, expected {len(pixels)} as in {images_path.name}")
    if len(labels) and labels.max() > 9:
        raise ValueError(f"{labels_path} holds the label {labels.max()}, expected 0 to 9")
    return Images(pixels, labels.astype(np.int32))


def _find(folder: Path, name: str) -> Path:
    """Finds a file in either of its usual spellings, gzipped or not."""
    spellings = (name, name.replace("-idx", ".idx"))
    candidates = [folder / f"{spelling}{ending}" for spelling in spellings for ending in ("", ".gz")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"data_dir {folder} has no {name}, expected one of {[path.name for path in candidates]}")


def read_idx(path: Path, num_axes: int) -> npt.NDArray[np.uint8]:
    """Reads an idx file: two zero bytes, element type, number of axes, big-endian uint32 sizes, elements.

    Raises:
        ValueError: The file is not an idx file of bytes with that many axes, or its length does not match its header.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from error
    magic = bytes([0, 0, UNSIGNED_BYTE, num_axes])
    num_header_bytes = len(magic) + 4 * num_axes
    if content[: len(magic)] != magic or len(content) < num_header_bytes:
        raise ValueError(
            f"{path} starts with {content[: len(magic)].hex()}, expected {magic.hex()} and {num_axes} sizes"
        )
    shape = [int(size) for size in np.frombuffer(content, ">u4", num_axes, offset=len(magic))]
    num_bytes = num_header_bytes + math.prod(shape)
    if len(content) != num_bytes:
        raise ValueError(f"{path} is {len(content)} bytes long, expected {num_bytes} for the shape {shape}")
    return np.frombuffer(content, np.uint8, offset=num_header_bytes).reshape(shape)
