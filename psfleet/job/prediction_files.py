"""What `psfleet predict` and its workers share: the request, and the files of a worker's share."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from psfleet.files import replace_file
from psfleet.job.fields import PositiveInt, Section

REQUEST = "request.json"


class Request(Section):
    """What the workers predict; a file in the folder of all shares.

    Attributes:
        job: The resolved job of the model, as JSON.
        checkpoint: Path or URL of a checkpoint; None: the weights are in a file.
        weights: A safetensors file with all tensors by name; None: they are in a checkpoint.
        data: `module:callable` of the data set.
        workers: Number of workers: worker i predicts the batches i, i + workers and so on.
    """

    job: str
    checkpoint: str | None = None
    weights: str | None = None
    data: str
    workers: PositiveInt

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The request in a folder."""
        return cls.model_validate_json((folder / REQUEST).read_bytes())

    def write(self, folder: Path) -> None:
        """Writes it into a folder."""
        (folder / REQUEST).write_text(self.model_dump_json(), encoding="utf-8")


class Output(Section):
    """One tensor of a prediction.

    Attributes:
        name: Of the output.
        dtype: NumPy's name of the type.
        shape: Of one example.
    """

    name: str
    dtype: str
    shape: list[int]


class Share(Section):
    """The predictions of one worker; its file is written when they are complete.

    Attributes:
        outputs: Empty if there are fewer batches than workers.
        counts: Number of examples of each of its batches.
        num_examples: Of the whole data set.
        checksum: Of all features of the whole data set.
    """

    outputs: list[Output]
    counts: list[PositiveInt]
    num_examples: PositiveInt
    checksum: int

    @classmethod
    def read(cls, folder: Path, index: int) -> Self:
        """The share of a worker.

        Raises:
            FileNotFoundError: It is not complete.
        """
        return cls.model_validate_json(_file(folder, index).read_bytes())

    def write(self, folder: Path, index: int) -> None:
        """Completes the share of a worker."""
        replace_file(_file(folder, index), self.model_dump_json())


def values_file(folder: Path, index: int, output: int) -> Path:
    """The file with the values of one output of a worker's batches, one after the other."""
    return folder / f"share-{index}-{output}.bin"


def _file(folder: Path, index: int) -> Path:
    return folder / f"share-{index}.json"
