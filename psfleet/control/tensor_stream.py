"""Named tensors as a stream of messages: a record of each first, then their data in chunks, then a SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from psfleet.control import run_control_pb2 as pb
from psfleet.control.download import CHUNK_BYTES
from psfleet.errors import LostPeerError
from psfleet.layout import TensorSpec


def record_of(spec: TensorSpec, trained: bool = False) -> pb.TensorRecord:
    """The message for names, shape and dtype of a tensor; see `spec_of`."""
    return pb.TensorRecord(name=spec.name, shape=spec.shape, dtype=spec.dtype, trained=trained)


def spec_of(record: pb.TensorRecord) -> TensorSpec:
    """Name, shape and dtype of a tensor."""
    return TensorSpec(record.name, tuple(record.shape), record.dtype)


def sending(
    caller: pb.RunCall, tensors: Mapping[str, np.ndarray], batches: int = 0, loss: float = 0.0, changes: int = 0
) -> Iterator[pb.TensorMessage]:
    """The messages for tensors of any shape and dtype; see `TensorMessage` in run_control.proto."""
    arrays = {name: _sent(np.asarray(value)) for name, value in tensors.items()}
    records = [record_of(TensorSpec(name, each.shape, each.dtype.name)) for name, each in arrays.items()]
    yield pb.TensorMessage(caller=caller, tensors=records, batches=batches, loss=loss, changes=changes)
    digest = hashlib.sha256()
    for each in arrays.values():
        view = each.reshape(-1).view(np.uint8).data
        for start in range(0, len(view), CHUNK_BYTES):
            data = bytes(view[start : start + CHUNK_BYTES])
            digest.update(data)
            yield pb.TensorMessage(data=data)
    yield pb.TensorMessage(sha256=digest.hexdigest())


def _sent(value: np.ndarray) -> np.ndarray:
    """A tensor as it is sent: contiguous, in this machine's byte order, which the name of a type does not say."""
    return np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)


def receiving(
    requests: Iterator[pb.TensorMessage], check: Callable[[Mapping[str, TensorSpec]], None]
) -> tuple[pb.TensorMessage, dict[str, np.ndarray]]:
    """The first message and the tensors of a stream, which are held once.

    Args:
        requests: The messages.
        check: Called with shapes and dtypes, before any memory is taken for the data; raises if they are not right. The
            sender decides how much memory is taken if this does not.

    Raises:
        LostPeerError: The stream has ended early, or was changed on its way.
    """
    head = next(requests, pb.TensorMessage())
    specs = {each.name: spec_of(each) for each in head.tensors}
    check(specs)
    filled = _Filled(specs)
    for request in requests:
        if request.sha256:
            break
        filled.add(request.data)
    else:
        raise LostPeerError(f"the stream of tensors has ended after {filled.num_bytes} of {filled.size} bytes")
    if filled.num_bytes != filled.size or request.sha256 != filled.digest.hexdigest():
        found = f"{filled.num_bytes} of {filled.size} bytes, {filled.digest.hexdigest()}"
        raise LostPeerError(f"the stream of tensors was changed: {found}")
    return head, filled.tensors


class _Filled:
    """Tensors that are filled one after the other, by chunks that are cut anywhere."""

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self.tensors = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
        self.size = sum(spec.num_bytes for spec in specs.values())
        self.num_bytes = 0
        self.digest = hashlib.sha256()
        # The bytes of those that are not whole yet, in reverse order.
        self._left = [each.reshape(-1).view(np.uint8) for each in reversed(self.tensors.values()) if each.size]

    def add(self, chunk: bytes) -> None:
        """Takes the next bytes; raises `LostPeerError` if there are too many."""
        if self.num_bytes + len(chunk) > self.size:
            raise LostPeerError(f"the stream of tensors has more than the {self.size} bytes that it has announced")
        data = np.frombuffer(chunk, np.uint8)
        while len(data):
            target = self._left.pop()
            number = min(len(target), len(data))
            target[:number] = data[:number]
            if number < len(target):
                self._left.append(target[number:])
            data = data[number:]
        self.num_bytes += len(chunk)
        self.digest.update(chunk)
