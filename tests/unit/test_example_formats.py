"""The readers of examples/formats: the same examples in each format, shards by file, and files good and bad."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.program_samples import sample_job

from psfleet.errors import ProgramError
from psfleet.manifests.kubernetes.program_configmap import MOST_BYTES, Files
from worker_service.input_pipeline import read
from worker_service.random_data import is_random

EXAMPLE = Path(__file__).parents[2] / "examples" / "formats"
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
MOST_EXAMPLES = 2000
FORMATS = ("csv", "records", "tfrecord", "text")


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


formats, write = module("formats"), module("write")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the command writes."""
    folder = tmp_path_factory.mktemp("data")
    for format in FORMATS:
        write.write(format, folder / format)
    return folder


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Files of 3 examples each."""
    rows = np.arange(6 * 65, dtype=np.uint8).reshape(6, 65) % 10
    for format in FORMATS:
        (tmp_path / format).mkdir()
        for number in range(2):
            write.WRITERS[format](tmp_path / format / f"train-{number}", rows[number::2])
    return tmp_path


def rows_of(folder: Path, format: str, part: str, *shard: int) -> list[list[int]]:
    """Pixels and label of each example."""
    found = formats.examples(folder / format, format, part, *shard).batch(MOST_EXAMPLES)
    pixels, labels = next(found.as_numpy_iterator())
    rows: list[list[int]] = np.column_stack([pixels.astype(int), labels]).tolist()
    return rows


def test_each_format_has_the_same_examples_in_the_same_order(written: Path) -> None:
    digits = np.loadtxt(write.DIGITS, delimiter=",", dtype=int)
    is_test = np.arange(len(digits)) % write.TEST_EVERY == 0
    for part, expected in (("train", digits[~is_test]), ("test", digits[is_test])):
        for format in FORMATS:
            assert rows_of(written, format, part) == expected.tolist(), format


@pytest.mark.parametrize(("format", "num_shards"), [("csv", 2), ("records", 3)])
def test_shards_have_each_example_once(few: Path, format: str, num_shards: int) -> None:
    """Each of two shards has a file of its own; for three there are too few files."""
    shards = [rows_of(few, format, "train", shard, num_shards) for shard in range(num_shards)]
    assert [len(rows) for rows in shards] == [6 // num_shards] * num_shards
    assert sorted(itertools.chain(*shards)) == sorted(rows_of(few, format, "train"))


def test_the_data_are_not_random(few: Path) -> None:
    assert not any(is_random(formats.examples(few / format, format, "train")) for format in FORMATS)


def test_files_of_images_may_be_of_another_size(tmp_path: Path) -> None:
    """MNIST's, with its names."""
    pixels = np.random.default_rng(0).integers(256, size=[3, 28, 28]).astype(np.uint8)
    for array, name in ((pixels, IMAGES), (np.array([7, 0, 4], np.uint8), LABELS)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (tmp_path / f"t10k-{name}").write_bytes(header + array.tobytes())
    found = list(formats.examples(tmp_path, "records", "test").as_numpy_iterator())
    assert np.array_equal(np.stack([image for image, _ in found]), pixels.reshape(3, 784))
    assert [int(label) for _, label in found] == [7, 0, 4]


@pytest.mark.parametrize("format", FORMATS)
def test_one_format_fits_into_a_configmap(written: Path, format: str) -> None:
    files = Files.of(written / format)
    assert len(files.content) > write.NUM_FILES
    config_map = files.config_map("formats")
    texts = [*config_map.get("data", {}).values(), *config_map.get("binaryData", {}).values()]
    assert sum(map(len, texts)) < MOST_BYTES


@pytest.mark.parametrize(
    ("format", "name", "bad", "message"),
    [
        (
            "csv",
            "1.csv",
            lambda text: text.replace(b"\n", b"\n1,2,x\n", 1),
            ":2: expected 65 whole numbers, found 1,2,x",
        ),
        ("csv", "1.csv", lambda text: text[:-30], ":3: expected 65 whole numbers, found "),
        ("text", "0.txt", lambda text: b"7 3:5 x\n" + text, ":1: expected LABEL PIXEL:VALUE ..., found 7 3:5 x"),
        ("text", "0.txt", lambda text: text + b"7 65:1\n", ":4: expected pixels 1 to 64, found 7 65:1"),
        ("tfrecord", "1.tfrecord", lambda text: text[:-1], r" has \d+ bytes, expected \d+ for the record at byte"),
        ("tfrecord", "1.tfrecord", lambda text: text + b"123", r" has \d+ bytes, expected \d+ for the record at byte"),
        ("records", f"0-{IMAGES}", lambda text: text[:-1], r" has 207 bytes, expected 208 for the shape \[3, 8, 8\]"),
        ("records", f"0-{IMAGES}", lambda text: text[:9], " is no idx file of bytes with 3 axes"),
        ("records", f"0-{LABELS}", lambda text: b"\0\0\x08\x01\0\0\0\1\7", " has 1 labels, expected 3"),
    ],
)
def test_a_bad_file_is_named_in_one_line(few: Path, format: str, name: str, bad: object, message: str) -> None:
    path = few / format / f"train-{name}"
    path.write_bytes(bad(path.read_bytes()))
    with pytest.raises((ProgramError, ValueError), match=f"{path}{message}") as caught:
        list(read(formats.examples(few / format, format, "train"), sample_job(), "reading"))
    assert "\n" not in str(caught.value)
    assert "user-defined" not in str(caught.value), "TensorFlow's names of its own operations"


def test_missing_files_are_named(few: Path) -> None:
    (few / "records" / f"train-0-{LABELS}").unlink()
    with pytest.raises(FileNotFoundError, match=f"train-0-{LABELS}"):
        formats.examples(few / "records", "records", "train")
    with pytest.raises(FileNotFoundError, match=r"csv has no file test-\*\.csv, expected those that write\.py makes"):
        formats.examples(few / "csv", "csv", "test")
    path = few / "csv" / "train-1.csv"
    examples = formats.examples(few / "csv", "csv", "train")
    path.unlink()
    with pytest.raises(ProgramError, match=f"reading raised NotFoundError: {path}; No such file or directory$"):
        list(read(examples, sample_job(), "reading"))
