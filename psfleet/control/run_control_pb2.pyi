from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunCall(_message.Message):
    __slots__ = ("run", "version", "call", "owner")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: str
    call: str
    owner: str
    def __init__(self, run: _Optional[str] = ..., version: _Optional[str] = ..., call: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class RunView(_message.Message):
    __slots__ = ("step", "final_step", "status", "generation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FINAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    step: int
    final_step: int
    status: str
    generation: int
    def __init__(self, step: _Optional[int] = ..., final_step: _Optional[int] = ..., status: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class TensorMessage(_message.Message):
    __slots__ = ("caller", "tensors", "data", "sha256", "batches", "loss", "changes")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    caller: RunCall
    tensors: _containers.RepeatedCompositeFieldContainer[TensorRecord]
    data: bytes
    sha256: str
    batches: int
    loss: float
    changes: int
    def __init__(self, caller: _Optional[_Union[RunCall, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[TensorRecord, _Mapping]]] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ..., batches: _Optional[int] = ..., loss: _Optional[float] = ..., changes: _Optional[int] = ...) -> None: ...

class TensorRecord(_message.Message):
    __slots__ = ("name", "shape", "dtype", "trained")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    trained: bool
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., trained: _Optional[bool] = ...) -> None: ...

class TrainRequest(_message.Message):
    __slots__ = ("caller", "steps")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    caller: RunCall
    steps: int
    def __init__(self, caller: _Optional[_Union[RunCall, _Mapping]] = ..., steps: _Optional[int] = ...) -> None: ...

class SteppedReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class EvaluatedReply(_message.Message):
    __slots__ = ("metrics",)
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class SavedReply(_message.Message):
    __slots__ = ("folder", "step")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    folder: str
    step: int
    def __init__(self, folder: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...
