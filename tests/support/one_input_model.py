"""The metadata of a model with one input, x of float32 [rows, 2], and one output, y of float32 [rows]."""

from __future__ import annotations

from psfleet.inference.tensors import ModelMetadata, TensorMetadata

METADATA = ModelMetadata(
    inputs=(TensorMetadata(name="x", datatype="FP32", shape=(-1, 2)),),
    outputs=(TensorMetadata(name="y", datatype="FP32", shape=(-1,)),),
)
