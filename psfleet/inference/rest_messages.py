"""Queries and answers of the Open Inference Protocol as JSON, with tensors in it or in binary form behind it.

The binary form is the extension `binary_tensor_data`: the JSON gives `binary_data_size` of each tensor, whose bytes
follow it in the same order, and a header has the length of the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from psfleet.inference.query import MEMBERS, Answer, Query
from psfleet.inference.tensors import (
    ModelMetadata,
    QueryError,
    Status,
    datatype_of,
    from_bytes,
    from_list,
    to_bytes,
    to_list,
)

SIZE = "binary_data_size"
ALL_BINARY = "binary_data_output"
BINARY = "binary_data"


def parse_query(model: str, version: str, body: bytes, json_length: str | None) -> Query:
    """A query.

    Args:
        json_length: The header with the length of the JSON; None: the body has nothing else.

    Raises:
        QueryError: The body is not a query.
    """
    # Not more digits than the body's: Python converts a few thousand only.
    is_length = json_length is None or (json_length.isdecimal() and len(json_length) <= len(str(len(body))))
    end = int(json_length) if json_length is not None and is_length else len(body)
    if not is_length or end > len(body):
        raise QueryError(Status.INVALID, f"the length of the JSON is {json_length}, expected at most {len(body)}")
    try:
        content = json.loads(body[:end])
    except (ValueError, RecursionError) as error:
        raise QueryError(Status.INVALID, f"the body is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list):
        raise QueryError(Status.INVALID, "the body has no list `inputs`, expected an object with one")
    reader = _Binary(body, end)
    inputs = [_input(each, reader) for each in content["inputs"]]
    reader.require_end()
    wanted = content.get("outputs") or []
    if not isinstance(wanted, list):
        raise QueryError(Status.INVALID, f"outputs is {wanted!r}, expected a list")
    outputs = [(_field(each, "name", str), _parameters(each)) for each in wanted]
    is_all = _parameters(content).get(ALL_BINARY) is True
    binary = frozenset(name for name, options in outputs if options.get(BINARY, is_all) is True)
    names = tuple(name for name, _ in outputs)
    binary_names = None if is_all and not outputs else binary
    return Query(model, version, str(content.get("id") or ""), inputs, names, binary_names)


def answer_body(answer: Answer, query: Query) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON; None: it has nothing else."""
    outputs, behind = [], []
    for name, tensor in answer.outputs.items():
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(tensor.dtype), "shape": list(tensor.shape)}
        if query.binary is None or name in query.binary:
            behind.append(to_bytes(tensor))
            output["parameters"] = {SIZE: len(behind[-1])}
        else:
            output["data"] = to_list(tensor)
        outputs.append(output)
    content = {
        "model_name": answer.model,
        "model_version": answer.version,
        "parameters": {MEMBERS: answer.members},
        "outputs": outputs,
    }
    if query.id:
        content["id"] = query.id
    header = json.dumps(content).encode()
    return b"".join([header, *behind]), len(header) if behind else None


def metadata_content(name: str, version: str, platform: str, metadata: ModelMetadata) -> dict[str, Any]:
    """The metadata of a model."""
    return {
        "name": name,
        "versions": [version],
        "platform": platform,
        "inputs": [each.model_dump(mode="json") for each in metadata.inputs],
        "outputs": [each.model_dump(mode="json") for each in metadata.outputs],
    }


class _Binary:
    """The bytes behind the JSON, which the inputs take one after the other."""

    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._at = start

    def take(self, name: str, size: object) -> bytes:
        """The bytes of the next tensor."""
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(self._body) - self._at:
            raise QueryError(
                Status.INVALID, f"input {name!r} has {SIZE} {size!r}, expected at most {len(self._body) - self._at}"
            )
        self._at += size
        return self._body[self._at - size : self._at]

    def require_end(self) -> None:
        """Raises QueryError if bytes are left."""
        if self._at != len(self._body):
            raise QueryError(Status.INVALID, f"{len(self._body) - self._at} bytes are left behind the inputs")


def _input(content: Any, binary: _Binary) -> tuple[str, np.ndarray]:
    name = _field(content, "name", str)
    datatype = _field(content, "datatype", str)
    shape = _field(content, "shape", list)
    size = _parameters(content).get(SIZE)
    if size is not None:
        return name, from_bytes(name, datatype, shape, binary.take(name, size))
    return name, from_list(name, datatype, shape, _field(content, "data", list))


def _field(content: Any, key: str, kind: type) -> Any:
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, kind):
        raise QueryError(Status.INVALID, f"a tensor has {key} {value!r}, expected a {kind.__name__}")
    return value


def _parameters(content: Any) -> Mapping[str, Any]:
    found = content.get("parameters") if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}
