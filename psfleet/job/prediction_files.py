"""What `psfleet predict` and its workers share: the request, and the files of a worker's share."""

from __future__ import annotations

import re
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
        files: Names of the model's files that a worker fetches from its driver first; none: it reads them itself. With
            names, `checkpoint` or `weights` is a name, too.
        data: `module:callable` of the data set.
        workers: Number of workers: worker i predicts the batches i, i + workers and so on.
        attempt: Changes if the driver begins again without the shares of an earlier attempt.
        complete: Indices of the workers whose shares the driver has.
    """

    job: str
    checkpoint: str | None = None
    weights: str | None = None
    files: tuple[str, ...] = ()
    data: str
    workers: PositiveInt
    attempt: str = ""
    complete: tuple[int, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The request in a folder."""
        return cls.model_validate_json((folder / REQUEST).read_bytes())

    def write(self, folder: Path) -> None:
        """Writes it into a folder, as a whole."""
        replace_file(folder / REQUEST, self.model_dump_json())


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
        attempt: That of the request.
    """

    outputs: list[Output]
    counts: list[PositiveInt]
    num_examples: PositiveInt
    checksum: int
    attempt: str = ""

    @classmethod
    def read(cls, folder: Path, index: int) -> Self:
        """The share of a worker.

        Raises:
            FileNotFoundError: It is not complete.
        """
        return cls.model_validate_json(share_file(folder, index).read_bytes())

    def write(self, folder: Path, index: int) -> None:
        """Completes the share of a worker."""
        replace_file(share_file(folder, index), self.model_dump_json())


def values_file(folder: Path, index: int, output: int) -> Path:
    """The file with the values of one output of a worker's batches, one after the other."""
    return folder / f"share-{index}-{output}.bin"


def share_file(folder: Path, index: int) -> Path:
    """The file of `Share`."""
    return folder / f"share-{index}.json"


def is_name_of_share(index: int, name: str) -> bool:
    """Whether a file of this name belongs to the share of a worker."""
    return re.fullmatch(rf"share-{index}(\.json|-(0|[1-9][0-9]*)\.bin)", name) is not None
