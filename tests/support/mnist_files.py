"""Files in MNIST's format with random images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    """An idx file of bytes."""
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def mnist_files(num_training: int = 6, num_test: int = 3) -> dict[str, bytes]:
    """The contents of the four files by name; the labels are 0, 1, ... 9, 0, ..."""
    random = np.random.default_rng(0)
    files = {}
    for num_images, images_name, labels_name in ((num_training, *NAMES[:2]), (num_test, *NAMES[2:])):
        files[images_name] = idx(random.integers(256, size=[num_images, 28, 28]))
        files[labels_name] = idx(np.arange(num_images) % 10)
    return files


def write_files(folder: Path, files: dict[str, bytes]) -> str:
    """Writes files into a folder; its path."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)
