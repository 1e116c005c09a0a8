"""The training program: the classes that a user's callable returns, and its import."""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psfleet.errors import BadJobError, ProgramError
from psfleet.job.job import Job
from psfleet.job.losses import check_losses, prefix, require_losses
from psfleet.job.user_code import failure, user_code
from psfleet.job.watched_metrics import require_evaluation

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    LossFunction = Callable[[Any], tf.Tensor]

_OWN_PACKAGES = frozenset({"psfleet", "worker_service", "ps_service"})
"""Packages that are never removed from sys.modules."""

_folders: list[str] = []
"""The folder that `load_program` last added to sys.path."""


@dataclass(frozen=True, kw_only=True)
class KerasProgram:
    """A Keras 3 model, its loss and its data.

    Attributes:
        model: Returns the model; it need not be built.
        loss: As in `keras.Model.compile`: an object, a name, a function, or a list or dict of them by output.
        train: Maps `(shard_index, num_shards)` to a `tf.data.Dataset` of unbatched `(x, y)` or `(x, y, sample_weight)`
            examples, whose content and order are the same at each iteration. psfleet shuffles, batches, repeats and
            prefetches. It is called on a thread other than the main one; with spares, in each worker for one shard
            after the other.

            If the data set shuffles or has random operations, it is called again for each epoch and each new start
            within one: files are loaded again and what `cache()` holds is lost. To avoid it, use `train.shuffle` of
            the job file, `shuffle(..., reshuffle_each_iteration=False)`, or stateless random operations. If
            TensorFlow knows how many examples there are, each epoch must have as many batches.
        metrics: As in `keras.Model.compile`.
        weighted_metrics: As in `keras.Model.compile`: with sample weights or class weights.
        class_weight: As in `keras.Model.fit`: the weight of a training example by the class of its label. A class
            that is not there has weight 1. Evaluation ignores it, as in Keras.
        evaluate: Returns a finite `tf.data.Dataset` of unbatched examples like those of `train`; None: no evaluation.
        optimizer: An elementwise `keras.optimizers.Optimizer`, newly made and not built. The ps apply it if the job
            file has `optimizer: {name: program}`; otherwise it is not used.
    """

    model: Callable[[], keras.Model]
    loss: Any
    train: Callable[[int, int], tf.data.Dataset]
    metrics: Any = None
    weighted_metrics: Any = None
    class_weight: Mapping[int, float] | None = None
    evaluate: Callable[[], tf.data.Dataset] | None = None
    optimizer: keras.optimizers.Optimizer | None = None

    def __post_init__(self) -> None:
        """Raises ProgramError if a field that must be callable is not, or class weights are not numbers by class."""
        _check_callables(self, ("model", "train", "evaluate"))
        _check_class_weight(self.class_weight)


@dataclass(frozen=True, kw_only=True)
class GraphProgram:
    """A TensorFlow 1 style function that builds a loss, or several, and its data.

    Attributes:
        loss: Maps a batch to a scalar floating-point tensor, using variables of `tf.compat.v1.get_variable`. The batch
            has the structure of the data set's examples, each component of shape `[batch, ...]`. It is called several
            times, each time in a new graph, and must not keep state between calls. None: the program has `losses`.
            `tf.compat.v1.train.get_or_create_global_step()` is the global step of the parameters, here and in
            `predict`; in modes async and ssp the number of the worker's batch, of which each worker has its share.
        losses: Several losses by name instead of `loss`: each a function like it, and the scope of the variables that
            its steps move, such as `generator/`. All are called in their order in one graph. The job file has
            `optimizers` and `train.alternate` for them.
        loss_weight: Maps a batch to what its examples weigh in a loss that is divided by that: a scalar, for example
            the sum of a mask. Only used where a worker divides its batch over several devices (`device.replicas`), to
            average their losses, each by its weight. None: all examples count alike in each loss.
        train: As in `KerasProgram`, with examples of any structure.
        predict: Maps features to predictions with the variables of the loss, for `psfleet predict` and `export`. The
            features are a batch as for `loss`; if examples are tuples such as `(x, y)`, the first component alone.
            The predictions are a tensor, or a dict or list of tensors, of shape `[batch, ...]` each. None: the program
            cannot predict.
        evaluate: Returns a finite `tf.data.Dataset` of unbatched examples; None: no evaluation.
        optimizer: As in `KerasProgram`.
    """

    loss: LossFunction | None = None
    losses: Mapping[str, tuple[LossFunction, str]] | None = None
    loss_weight: LossFunction | None = None
    predict: Callable[[Any], Any] | None = None
    train: Callable[[int, int], tf.data.Dataset]
    evaluate: Callable[[], tf.data.Dataset] | None = None
    optimizer: keras.optimizers.Optimizer | None = None

    def __post_init__(self) -> None:
        """Raises ProgramError if a field that must be callable is not, or losses are not valid."""
        if self.losses is None:
            _check_callables(self, ("loss",))
        elif self.loss is not None:
            raise ProgramError("GraphProgram has loss and losses, expected one of the two")
        else:
            check_losses(self.losses)
        _check_callables(self, ("train", "evaluate", "loss_weight", "predict"))

    @property
    def named_losses(self) -> dict[str, LossFunction]:
        """The loss functions by name; the only one by an empty name."""
        if self.losses is not None:
            return {name: function for name, (function, _) in self.losses.items()}
        assert self.loss is not None
        return {"": self.loss}

    @property
    def scopes(self) -> dict[str, str]:
        """What the names of the variables of each of several losses begin with; empty for a single loss."""
        return {name: prefix(scope) for name, (_, scope) in (self.losses or {}).items()}


def load_program(job: Job, folder: Path) -> KerasProgram | GraphProgram:
    """Imports `job.program`, searching `folder` first, and calls it with `job.options`.

    Modules that an earlier call imported from another folder are removed from sys.modules, so that two jobs can have
    programs of the same module name.

    Raises:
        ProgramError: The module or callable does not exist, does not accept the options, raised an exception, or
            returned another type.
        BadJobError: The job watches a metric, and the program has no evaluation data; or the job's optimizer is that of
            the program, which has none; or its optimizers are not those of the program's losses.
    """
    build = load_callable(job, folder)
    name = job.program.partition(":")[2]
    prefix = f"program {job.program!r}"
    try:
        inspect.signature(build).bind(**job.options)
    except (TypeError, ValueError) as error:
        raise ProgramError(f"{prefix}: options {job.options} do not fit {name}(): {error}") from error
    with user_code(job, f"{name}()"):
        program = build(**job.options)
    if not isinstance(program, KerasProgram | GraphProgram):
        got = type(program).__name__
        raise ProgramError(f"{prefix}: {name}() returned {got}, expected KerasProgram or GraphProgram")
    require_losses(job.optimizers or (), job.program, program.scopes if isinstance(program, GraphProgram) else ())
    require_evaluation(job, program.evaluate is not None)
    if job.optimizer is not None and job.optimizer.name == "program" and program.optimizer is None:
        raise BadJobError(
            f"optimizer.name is program, but program {job.program!r} has no optimizer; expected a "
            f"{type(program).__name__} with `optimizer`, or the name of another optimizer"
        )
    return program


def load_callable(job: Job, folder: Path) -> Callable[..., Any]:
    """Imports `job.program`, searching `folder` first.

    Raises:
        ProgramError: The module or callable does not exist, or the import raised an exception.
    """
    module_name, _, name = job.program.partition(":")
    _search_first(str(folder.resolve()), module_name)
    prefix = f"program {job.program!r}"
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            message = f"{prefix}: no module {error.name!r} in {folder} or on the Python path"
            raise ProgramError(message) from error
        raise failure(job, f"import {module_name}", error) from error
    build = getattr(module, name, None)
    if not callable(build):
        found = "nothing of that name" if build is None else f"{type(build).__name__}"
        raise ProgramError(f"{prefix}: {module.__file__} has {found} at {name!r}, expected a callable")
    return build


def _check_callables(program: KerasProgram | GraphProgram, fields: tuple[str, ...]) -> None:
    for field in fields:
        value = getattr(program, field)
        if not callable(value) and not (field in ("evaluate", "loss_weight", "predict") and value is None):
            raise ProgramError(f"{type(program).__name__}.{field} is {value!r}, expected a function")


def _check_class_weight(weights: Any) -> None:
    if weights is None:
        return
    if not isinstance(weights, Mapping) or not all(
        isinstance(number, numbers.Integral)
        and int(number) >= 0
        and isinstance(weight, numbers.Real)
        and 0 <= float(weight) < math.inf
        for number, weight in weights.items()
    ):
        raise ProgramError(
            f"KerasProgram.class_weight is {weights!r}, expected a dict of class numbers from 0 to weights >= 0"
        )


def _search_first(folder: str, module_name: str) -> None:
    """Puts `folder` first on sys.path, and unloads modules that would shadow those in it.

    These are the modules of the folder of an earlier call, and a module of the program's name from elsewhere.
    """
    for old in [old for old in _folders if old != folder]:
        _folders.remove(old)
        if old in sys.path:
            sys.path.remove(old)
        for root in [name for name in sys.modules if "." not in name]:
            file = _file(root)
            if file is not None and old in (str(file.parent), str(file.parent.parent)):
                _unload(root)
    if folder not in sys.path:
        _folders.append(folder)
    sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    importlib.invalidate_caches()
    root = module_name.partition(".")[0]
    here = PathFinder.find_spec(root, [folder])
    if here is not None and here.origin is not None and _file(root) not in (None, Path(here.origin).resolve()):
        _unload(root)


def _file(root: str) -> Path | None:
    """The file from which a top-level module was imported."""
    file = getattr(sys.modules.get(root), "__file__", None)
    return None if file is None else Path(file).resolve()


def _unload(root: str) -> None:
    """Removes a top-level module and its submodules from sys.modules, except psfleet's own packages."""
    if root not in _OWN_PACKAGES:
        for name in [name for name in sys.modules if name == root or name.startswith(f"{root}.")]:
            del sys.modules[name]
