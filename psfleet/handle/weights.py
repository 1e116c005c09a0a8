"""The weights of a live run by name, or as one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np

from psfleet.control import run_control_pb2 as pb
from psfleet.control.tensor_stream import receiving, sending, spec_of
from psfleet.errors import UsageError
from psfleet.layout import TensorSpec
from psfleet.tensor_checks import arrays, check_finite, check_specs
from psfleet.tensor_checks import vector as as_vector


class Weights:
    """All tensors of a run's model: trained ones, those that the forward pass changes, and frozen ones.

    The vector of `get_flat` and `set_flat` has the trained ones alone, in the order of `trained`, without gaps.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    @property
    def names(self) -> list[str]:
        """The names of all tensors: trained ones first, in the order of their creation."""
        return list(self._specs)

    @property
    def trained(self) -> list[str]:
        """The names of the trained tensors, in the order of their creation."""
        return [spec.name for spec in self._trained]

    def get(self) -> dict[str, np.ndarray]:
        """All tensors as they are at one step, at or after the present one: those of a checkpoint that is written now.

        In async mode the shards can have applied different gradients up to that step, as in any checkpoint.

        Raises: As `Run.save`.
        """
        received = self._call(
            "GetWeights", lambda caller: caller, lambda answers: receiving(answers, lambda specs: None)[1]
        )
        return cast("dict[str, np.ndarray]", received)

    def set(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Replaces tensors between two steps, on all ps or on none; the others and the optimizer's state stay.

        Training pauses at a step, and resumes from a checkpoint of that step that has the new tensors: neither a
        rollback nor a resume undoes the change. It takes seconds, because a new generation of the fleet starts. A call
        whose answer was lost is repeated, and replaces nothing if another call has replaced weights since it began.

        Args:
            tensors: Some or all of those of `get`, of the same shapes and types. Integers and floating point numbers of
                another width are not converted.

        Raises:
            UsageError: There is no tensor, a name, a shape or a type is not that of the model, a number is not finite,
                or another call has replaced weights since this one began; or as `Run.save`. Nothing has changed.
            LostPeerError: The run has ended meanwhile; the message says whether the change was made.
        """
        given = arrays(tensors)
        changes = self._describe().changes
        check_specs(self._specs, {name: _spec(name, each) for name, each in given.items()})
        check_finite(given, self._specs)
        self._call("SetWeights", lambda caller: sending(caller, given, changes=changes))

    def get_flat(self) -> np.ndarray:
        """The trained tensors as one vector: float32 `[number of trained weights]`."""
        return flat(self._trained, self.get())

    def set_flat(self, vector: np.ndarray) -> None:
        """Replaces the trained tensors by those of a vector as `get_flat` returns it; otherwise as `set`."""
        self.set(self.named(vector))

    def flat(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """The trained tensors among these, or their gradients, as one vector: float32.

        Raises:
            UsageError: One is missing or has another shape.
        """
        return flat(self._trained, tensors)

    def named(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The trained tensors of a vector as `get_flat` returns it.

        Raises:
            UsageError: It has another length.
        """
        return from_flat(self._trained, vector)

    @property
    def _specs(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec, _ in self._described}

    @property
    def _trained(self) -> list[TensorSpec]:
        return [spec for spec, is_trained in self._described if is_trained]

    @cached_property
    def _described(self) -> list[tuple[TensorSpec, bool]]:
        """All tensors, with whether each is trained; they are the same throughout a run."""
        return [(spec_of(record), record.trained) for record in self._describe().tensors]

    def _describe(self) -> pb.TensorMessage:
        """The tensors, and how often they were replaced up to now."""
        return cast("pb.TensorMessage", self._call("DescribeWeights", lambda caller: caller))


def flat(specs: Sequence[TensorSpec], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """The trained tensors of a model as one vector, float32.

    Raises:
        UsageError: One is missing or has another shape.
    """
    given = arrays(tensors)
    for spec in specs:
        if spec.name not in given:
            raise UsageError(f"tensor {spec.name!r} is missing, expected all trained tensors")
        if (shape := given[spec.name].shape) != spec.shape:
            raise UsageError(f"tensor {spec.name!r} has shape {list(shape)}, expected {list(spec.shape)}")
    return np.concatenate([given[spec.name].astype(np.float32).reshape(-1) for spec in specs])


def from_flat(specs: Sequence[TensorSpec], vector: np.ndarray) -> dict[str, np.ndarray]:
    """The trained tensors of a vector.

    Raises:
        UsageError: It has another length.
    """
    values, size = as_vector(vector, np.float32), sum(spec.size for spec in specs)
    if values.shape != (size,):
        raise UsageError(f"the vector has shape {list(values.shape)}, expected {[size]}: all trained tensors")
    ends = np.cumsum([spec.size for spec in specs])[:-1]
    return {spec.name: part.reshape(spec.shape) for spec, part in zip(specs, np.split(values, ends), strict=True)}


def _spec(name: str, value: np.ndarray) -> TensorSpec:
    return TensorSpec(name, value.shape, value.dtype.name)
