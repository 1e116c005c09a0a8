"""The commands for a run that trains at present: `psfleet save`, and `psfleet weights JOB --set FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import typer

from psfleet.checkpoint.parts import DTYPES
from psfleet.cli.arguments import Context, Fleet, LiveOn, Namespace, Out
from psfleet.errors import UsageError
from psfleet.handle import Run, attach
from psfleet.job.job import name_of
from psfleet.plurals import counted
from psfleet.run_folder import default_folder

app = typer.Typer()


@dataclass(frozen=True)
class Place:
    """Platform, context and namespace of a run, as the command line gives them; None: it does not."""

    on: str | None
    context: str | None
    namespace: str | None


@app.command()
def save(job: Fleet, on: LiveOn = None, out: Out = None, context: Context = None, namespace: Namespace = None) -> None:
    """Have a run write a checkpoint now; print its folder, in containers the one in the chief, once it is verified."""
    typer.echo(live_run(job, out, Place(on, context, namespace)).save())


def set_weights(job: str, file: Path, place: Place) -> None:
    """Replaces weights of a live run by the tensors of a safetensors file; tensors that it lacks stay as they are."""
    run = live_run(job, None, place)
    tensors = _tensors(file)
    run.weights.set(tensors)
    verb = "is that" if len(tensors) == 1 else "are those"
    typer.echo(f"{run.where}: {counted(len(tensors), 'tensor')} {verb} of {file} from step {run.step} on")


def live_run(job: str, out: Path | None, place: Place) -> Run:
    """The run of a job, given as its file, its name or the run's folder; by default that of `psfleet train`."""
    where = {"on": place.on, "context": place.context, "namespace": place.namespace}
    if place.on is not None:
        return attach(job, out=out, **where)
    if out is None and Path(job).is_dir():
        return attach(job, **where)
    return attach(out if out is not None else default_folder(name_of(job)), **where)


def _tensors(file: Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(file, framework="numpy") as opened:
            for name in sorted(opened.keys()):
                # The package raises other errors for types that NumPy does not have.
                if (dtype := opened.get_slice(name).get_dtype()) not in DTYPES.values():
                    expected = ", ".join(DTYPES.values())
                    raise UsageError(f"--set {file}: tensor {name!r} is {dtype}, expected one of {expected}")
        return safetensors.numpy.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise UsageError(f"--set {file}: {error}, expected a file in safetensors format") from error
