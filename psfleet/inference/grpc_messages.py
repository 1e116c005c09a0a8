"""Queries and answers of the Open Inference Protocol as protobuf messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from psfleet.inference import open_inference_pb2 as pb
from psfleet.inference.query import MEMBERS, Answer, Query
from psfleet.inference.tensors import (
    BYTES,
    ModelMetadata,
    QueryError,
    Status,
    datatype_of,
    from_bytes,
    from_list,
    to_bytes,
)

CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""The field of each datatype's elements; FP16 has none: its elements are raw."""


def parse_query(request: pb.ModelInferRequest) -> Query:
    """A query.

    Raises:
        QueryError: The message is not a query.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise QueryError(
            Status.INVALID, f"raw_input_contents has {len(raw)} tensors, expected {len(request.inputs)} as inputs"
        )
    if raw and any(each.HasField("contents") for each in request.inputs):
        raise QueryError(Status.INVALID, "an input has contents, expected none beside raw_input_contents")
    inputs = [(each.name, _tensor(each, raw[at] if raw else None)) for at, each in enumerate(request.inputs)]
    outputs = [each.name for each in request.outputs]
    return Query(request.model_name, request.model_version, request.id, inputs, outputs)


def parse_message(message: bytes) -> Query:
    """As `parse_query`, of a `ModelInferRequest` in its binary form."""
    return parse_query(pb.ModelInferRequest.FromString(message))


def num_read(request: pb.ModelInferRequest) -> int:
    """The number of bytes whose elements are read one by one."""
    is_raw = bool(request.raw_input_contents) and all(each.datatype != BYTES for each in request.inputs)
    return 0 if is_raw else request.ByteSize()


def is_raw_answer(answer: Answer, request: pb.ModelInferRequest) -> bool:
    """Whether an answer has raw tensors: if those of the query were, or if a datatype has no other form."""
    return bool(request.raw_input_contents) or any(
        datatype_of(tensor.dtype) not in CONTENTS for tensor in answer.outputs.values()
    )


def answer_bytes(answer: Answer, id_: str, is_raw: bool) -> bytes:
    """An answer as the binary form of a `ModelInferResponse`.

    Args:
        id_: Of the query.
        is_raw: Of the tensors.
    """
    return answer_message(answer, id_, is_raw).SerializeToString()


def answer_message(answer: Answer, id_: str, is_raw: bool) -> pb.ModelInferResponse:
    """An answer; arguments as of `answer_bytes`."""
    response = pb.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=id_)
    response.parameters[MEMBERS].string_param = answer.members
    for name, tensor in answer.outputs.items():
        datatype = datatype_of(tensor.dtype)
        output = response.outputs.add(name=name, datatype=datatype, shape=tensor.shape)
        if is_raw:
            response.raw_output_contents.append(to_bytes(tensor))
        else:
            getattr(output.contents, CONTENTS[datatype]).extend(tensor.ravel().tolist())
    return response


def metadata_message(name: str, version: str, platform: str, metadata: ModelMetadata) -> pb.ModelMetadataResponse:
    """The metadata of a model."""
    message = pb.ModelMetadataResponse(name=name, versions=[version], platform=platform)
    for found, given in ((message.inputs, metadata.inputs), (message.outputs, metadata.outputs)):
        for each in given:
            found.add(name=each.name, datatype=each.datatype, shape=each.shape)
    return message


def _tensor(given: Any, raw: bytes | None) -> np.ndarray:
    if raw is not None:
        return from_bytes(given.name, given.datatype, list(given.shape), raw)
    if given.datatype == "FP16":
        raise QueryError(Status.INVALID, f"input {given.name!r} is FP16, expected raw_input_contents")
    field = CONTENTS.get(given.datatype, "bytes_contents")
    return from_list(given.name, given.datatype, list(given.shape), list(getattr(given.contents, field)))
