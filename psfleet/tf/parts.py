"""Model parallelism: `psfleet.part` assigns what a program builds to one of the tasks of a replica."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from psfleet.errors import ProgramError

CONTROL_FLOW = {"While": "T", "StatelessWhile": "T", "If": "Tin", "StatelessIf": "Tin"}
"""Functional control flow by the attribute that has the types of its last inputs."""


class PartError(ProgramError):
    """The number of a part is none that the job has."""


class Parts:
    """The parts of a replica while its program is built.

    Args of the constructor:
        number: `fleet.parts`.
        devices: The device of each part; empty: nothing is assigned, as in a graph of one process.

    Attributes:
        used: Parts for which a graph has got operations.
    """

    def __init__(self, number: int, devices: Sequence[str] = ()) -> None:
        self._number = number
        self.devices = devices
        self.used: set[int] = set()

    def check(self, number: int) -> None:
        """Raises PartError if there is no such part."""
        if number >= self._number:
            raise PartError(f"psfleet.part({number}): expected a number below fleet.parts = {self._number}")

    def require_all_used(self, program: str) -> None:
        """Raises ProgramError if a part other than 0 has no operations: its worker would have nothing to do."""
        unused = [str(number) for number in range(1, self._number) if number not in self.used]
        if unused:
            raise ProgramError(
                f"program {program!r}: part {', '.join(unused)} of fleet.parts = {self._number} has no operations, "
                f"expected `with psfleet.part({unused[0]}):` in the model function or the loss"
            )


_active: ContextVar[Parts | None] = ContextVar("parts", default=None)
_current: ContextVar[int | None] = ContextVar("part", default=None)


@contextmanager
def part(number: int) -> Iterator[None]:
    """Context manager that assigns what is built in it, and its gradients, to a part of the replica.

    In the model function of a `KerasProgram` these are the layers and operations that are made in it, or called if they
    were made outside of any part; in the `call` of a layer or model, and in a loss, all operations. What is built
    outside of any part belongs to part 0. Does nothing with `fleet.parts: 1`, outside of psfleet, and where a model is
    evaluated.

    Args:
        number: From 0 to `fleet.parts` - 1.

    Raises:
        PartError: There is no such part.
    """
    number = _checked(number)
    parts = _active.get()
    if parts is None:
        yield
        return
    parts.check(number)
    token = _current.set(number)
    try:
        if tf.executing_eagerly():
            yield
        else:
            graph = tf.compat.v1.get_default_graph()
            before = graph.version
            with tf.device(parts.devices[number] if parts.devices else None):
                yield
            if graph.version > before:
                parts.used.add(number)
    finally:
        _current.reset(token)


@contextmanager
def building(number: int, devices: Sequence[str] = ()) -> Iterator[Parts]:
    """Context manager in which `part` has an effect, unless there is only one part. See `Parts` for the arguments."""
    parts = Parts(number, devices)
    token = _active.set(parts if number > 1 else None)
    try:
        yield parts
    finally:
        _active.reset(token)


def current_part() -> int | None:
    """The part of the innermost `part` that has an effect; None outside."""
    return _current.get()


def has_devices() -> bool:
    """Whether a graph with several parts is built."""
    parts = _active.get()
    return parts is not None and bool(parts.devices)


def with_local_inputs(definition: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """The graph with copies of what loops and conditions get from other parts, each on the device of its loop.

    TensorFlow converts `While` to operations of which those for each input are on the device of that input: every
    iteration would wait for the other part.
    """
    devices = {node.name: node.device for node in definition.node}
    copies: list[Any] = []
    for node in definition.node:
        if not node.device or node.op not in CONTROL_FLOW:
            continue
        types = node.attr[CONTROL_FLOW[node.op]].list.type
        inputs = [name for name in node.input if not name.startswith("^")]
        first = len(inputs) - len(types)
        for at, (name, kind) in enumerate(zip(inputs[first:], types, strict=True), start=first):
            if devices[name.partition(":")[0]] == node.device or kind == tf.resource.as_datatype_enum:
                continue
            copy = tf.compat.v1.NodeDef(name=f"{node.name}_input_{at}", op="Identity", device=node.device)
            copy.input.append(name)
            copy.attr["T"].type = kind
            copies.append(copy)
            node.input[at] = copy.name
    definition.node.extend(copies)
    return definition


def _checked(number: Any) -> int:
    try:
        if isinstance(number, bool):
            raise TypeError
        found = operator.index(number)
    except TypeError:
        raise PartError(f"psfleet.part({number!r}): expected an integer from 0") from None
    if found < 0:
        raise PartError(f"psfleet.part({found}): expected an integer from 0")
    return found
