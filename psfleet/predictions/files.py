"""Merges the shares of all workers into one file, npz or Parquet, in the order of the examples."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import ValidationError

from psfleet.errors import ProgramError, PsfleetError, UsageError
from psfleet.job.prediction_files import Output, Share, share_file, values_file

NPZ, PARQUET = ".npz", ".parquet"
GROUP_BYTES = 32 << 20
"""Values of a row group of Parquet, at least."""


def require_name(out: Path) -> None:
    """Raises UsageError if a name is not that of a file that can be written."""
    if out.suffix not in (NPZ, PARQUET):
        raise UsageError(f"--out {out}: expected a name that ends in {NPZ} or {PARQUET}")
    if not out.parent.is_dir() or out.is_dir():
        raise UsageError(f"--out {out}: expected a file in a folder that exists")


def require_format(out: Path, otherwise: str = "pip install 'psfleet[parquet]'") -> None:
    """As `require_name`; also if this process cannot write the format.

    Args:
        otherwise: What installs the package, for the message.
    """
    require_name(out)
    if out.suffix == PARQUET and find_spec("pyarrow") is None:
        raise UsageError(f"--out {out}: pyarrow is not installed, expected {otherwise}, or {NPZ}")


def complete_share(folder: Path, index: int, attempt: str) -> Share | None:
    """The share of a worker; None: it is not complete, or of an earlier attempt.

    Raises:
        PsfleetError: Its files do not fit each other, as after a power failure.
    """
    try:
        share = Share.read(folder, index)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise PsfleetError(f"{share_file(folder, index)} is damaged, expected a share") from error
    if share.attempt != attempt:
        return None
    for number, output in enumerate(share.outputs):
        path = values_file(folder, index, number)
        expected = sum(share.counts) * math.prod(output.shape) * np.dtype(output.dtype).itemsize
        found = path.stat().st_size if path.is_file() else 0
        if found != expected:
            raise PsfleetError(f"{path} has {found} bytes, expected {expected}")
    return share


class Shares:
    """The complete shares of all workers.

    Args of the constructor:
        folder: Of the shares.
        program: Of the data set, for errors.

    Attributes:
        outputs: Of each example.
        num_examples: Of the data set.

    Raises:
        ProgramError: The workers have read different data, or predicted different shapes.
        PsfleetError: An example is missing.
    """

    def __init__(self, folder: Path, workers: int, program: str) -> None:
        self._folder = folder
        self._shares = [Share.read(folder, index) for index in range(workers)]
        first = self._shares[0]
        if any((each.num_examples, each.checksum) != (first.num_examples, first.checksum) for each in self._shares):
            raise ProgramError(
                f"program {program!r}: the workers have read different data, expected a data set of the same content "
                "and order at each iteration"
            )
        predicted = [each.outputs for each in self._shares if each.counts]
        for outputs in predicted:
            if outputs != predicted[0]:
                found = [
                    ", ".join(f"{one.name} {one.dtype} {one.shape}" for one in side) for side in (outputs, predicted[0])
                ]
                raise ProgramError(
                    f"program {program!r}: predictions of some examples are {found[0]}, of others {found[1]}"
                )
        self.outputs: list[Output] = predicted[0]
        self.num_examples = first.num_examples
        counted = sum(sum(each.counts) for each in self._shares)
        if counted != self.num_examples:
            raise PsfleetError(f"there are predictions of {counted} examples, expected {self.num_examples}")

    def blocks(self, output: int) -> Iterator[np.ndarray]:
        """The predictions of each batch, in the order of the data set: `[batch, ...]`."""
        spec = self.outputs[output]
        row_bytes = np.zeros(spec.shape, spec.dtype).nbytes
        starts = [0] * len(self._shares)
        for number in range(sum(len(share.counts) for share in self._shares)):
            index, turn = number % len(starts), number // len(starts)
            count = self._shares[index].counts[turn]
            # All files together may be more than a process may have open.
            with values_file(self._folder, index, output).open("rb") as file:
                file.seek(starts[index])
                content = _read(file, count * row_bytes)
            starts[index] += len(content)
            yield np.frombuffer(content, spec.dtype).reshape([count, *spec.shape])


def write(shares: Shares, out: Path, temporary: Path) -> None:
    """Writes a file of the format that a name stands for.

    Args:
        out: Has the suffix of the format.
        temporary: The file that is written.

    Raises:
        UsageError: Parquet has no type for an output, or it has no elements.
        OSError: The file cannot be written.
    """
    if out.suffix == NPZ:
        _write_npz(shares, temporary)
    else:
        _write_parquet(shares, temporary)


def _write_npz(shares: Shares, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for at, output in enumerate(shares.outputs):
            with archive.open(f"{output.name}.npy", "w", force_zip64=True) as file:
                header = {"descr": np.lib.format.dtype_to_descr(np.dtype(output.dtype)), "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, header | {"shape": (shares.num_examples, *output.shape)})
                for block in shares.blocks(at):
                    file.write(block.tobytes())


def _write_parquet(shares: Shares, path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    types = [_arrow_type(pyarrow, output) for output in shares.outputs]
    schema = pyarrow.schema([(output.name, kind) for output, kind in zip(shares.outputs, types, strict=True)])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(zip(*map(shares.blocks, range(len(types))), strict=True)):
            arrays = [_arrow_array(pyarrow, values, kind) for values, kind in zip(group, types, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _groups(blocks: Iterator[Sequence[np.ndarray]]) -> Iterator[list[np.ndarray]]:
    """Consecutive batches together, of all outputs."""
    waiting: list[Sequence[np.ndarray]] = []
    num_bytes = 0
    for block in blocks:
        waiting.append(block)
        num_bytes += sum(values.nbytes for values in block)
        if num_bytes >= GROUP_BYTES:
            yield [np.concatenate(values) for values in zip(*waiting, strict=True)]
            waiting, num_bytes = [], 0
    if waiting:
        yield [np.concatenate(values) for values in zip(*waiting, strict=True)]


def _arrow_type(pyarrow: Any, output: Output) -> Any:
    """A number, or lists of fixed length of numbers, one in the other."""
    try:
        kind = pyarrow.from_numpy_dtype(np.dtype(output.dtype))
    except (pyarrow.ArrowNotImplementedError, TypeError) as error:
        raise UsageError(f"output {output.name} is {output.dtype}, which Parquet has not, expected {NPZ}") from error
    if 0 in output.shape:
        raise UsageError(f"output {output.name} has shape {output.shape}, which Parquet has not, expected {NPZ}")
    for size in reversed(output.shape):
        kind = pyarrow.list_(kind, size)
    return kind


def _arrow_array(pyarrow: Any, values: np.ndarray, kind: Any) -> Any:
    array = pyarrow.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pyarrow.FixedSizeListArray.from_arrays(array, size)
    return array.cast(kind)


def _read(file: BinaryIO, num_bytes: int) -> bytes:
    content = file.read(num_bytes)
    if len(content) != num_bytes:
        raise PsfleetError(f"{file.name} ends after {file.tell()} bytes, expected {num_bytes - len(content)} more")
    return content
