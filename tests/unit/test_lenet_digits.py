"""The readers of examples/lenet: the digits in the tree, and idx files good and bad."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.mnist_files import NAMES, idx, mnist_files, write_files


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "lenet" / "digits.py"
    spec = importlib.util.spec_from_file_location("lenet_digits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_digits_in_the_tree_are_split_and_scaled_up(digits: ModuleType) -> None:
    training, test = digits.read_digits()
    assert training.pixels.shape == (1437, 28, 28)
    assert test.pixels.shape == (360, 28, 28)
    assert training.pixels.max() == 255
    assert set(test.labels) == set(range(10))


def test_an_enlarged_image_keeps_its_corners_and_its_mean(digits: ModuleType) -> None:
    small = np.full([1, 8, 8], 8, np.uint8)
    small[0, 0, 0], small[0, -1, -1] = 0, 16
    large = digits.enlarged(small)[0]
    assert (large[0, 0], large[-1, -1], large[14, 14]) == (0, 255, 128)
    assert large.mean() == pytest.approx(small.mean() * 255 / 16, abs=1)


def test_every_image_is_in_exactly_one_shard(digits: ModuleType) -> None:
    training, _ = digits.read_digits()
    shards = [training.shard(index, 4) for index in range(4)]
    assert sum(len(shard.labels) for shard in shards) == len(training.labels)
    np.testing.assert_array_equal(shards[3].labels[:2], training.labels[[3, 7]])


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_mnist_is_read_in_each_usual_spelling(digits: ModuleType, tmp_path: Path, gzipped: bool, dotted: bool) -> None:
    files = mnist_files()
    for name, content in files.items():
        spelling = name.replace("-idx", ".idx") if dotted else name
        ending, stored = (".gz", gzip.compress(content)) if gzipped else ("", content)
        (tmp_path / f"{spelling}{ending}").write_bytes(stored)
    training, test = digits.read_mnist(str(tmp_path))
    assert idx(training.pixels) == files[NAMES[0]]
    assert training.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert test.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (NAMES[0], b"", "starts with , expected 00000803"),
        (NAMES[0], idx(np.zeros([6])), "starts with 00000801, expected 00000803 and 3 sizes"),
        (NAMES[0], bytes([0, 0, 8, 3]), "expected 00000803 and 3 sizes"),
        (NAMES[0], idx(np.zeros([6, 28, 28]))[:-1], r"is 4719 bytes long, expected 4720 for the shape \[6, 28, 28\]"),
        (NAMES[0], idx(np.zeros([6, 8, 8])), "images of 8x8 pixels, expected 28x28"),
        (NAMES[1], idx(np.zeros([5])), "holds 5 labels, expected 6"),
        (NAMES[3], idx(np.full([3], 10)), "holds the label 10, expected 0 to 9"),
        (f"{NAMES[2]}.gz", b"not gzipped", "cannot be unpacked"),
    ],
)
def test_a_bad_idx_file_is_named(digits: ModuleType, tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    files = mnist_files()
    del files[name.removesuffix(".gz")]
    folder = write_files(tmp_path, {**files, name: content})
    with pytest.raises(ValueError, match=complaint) as caught:
        digits.read_mnist(folder)
    assert name in str(caught.value)


def test_a_missing_idx_file_is_named_with_its_spellings(digits: ModuleType, tmp_path: Path) -> None:
    files = mnist_files()
    del files[NAMES[3]]
    with pytest.raises(FileNotFoundError, match=r"has no t10k-labels-idx1-ubyte.*t10k-labels\.idx1-ubyte\.gz"):
        digits.read_mnist(write_files(tmp_path, files))
