from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMPTY: _ClassVar[Phase]
    RUNNING: _ClassVar[Phase]
    COMPLETE: _ClassVar[Phase]
    FINISHED: _ClassVar[Phase]
EMPTY: Phase
RUNNING: Phase
COMPLETE: Phase
FINISHED: Phase

class Caller(_message.Message):
    __slots__ = ("run", "version", "member")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: str
    member: Member
    def __init__(self, run: _Optional[str] = ..., version: _Optional[str] = ..., member: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("index", "incarnation", "process")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    index: int
    incarnation: int
    process: str
    def __init__(self, index: _Optional[int] = ..., incarnation: _Optional[int] = ..., process: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("exit_code", "message", "details")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    message: str
    details: str
    def __init__(self, exit_code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class SavedPart(_message.Message):
    __slots__ = ("step", "file", "num_bytes", "sha256", "error", "held")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    step: int
    file: str
    num_bytes: int
    sha256: str
    error: str
    held: bool
    def __init__(self, step: _Optional[int] = ..., file: _Optional[str] = ..., num_bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., error: _Optional[str] = ..., held: _Optional[bool] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("index", "step", "is_alive", "pushed", "joins", "cause", "address", "incarnation", "process", "program", "reading_first_batch")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    IS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    READING_FIRST_BATCH_FIELD_NUMBER: _ClassVar[int]
    index: int
    step: int
    is_alive: bool
    pushed: int
    joins: int
    cause: str
    address: str
    incarnation: int
    process: str
    program: str
    reading_first_batch: bool
    def __init__(self, index: _Optional[int] = ..., step: _Optional[int] = ..., is_alive: _Optional[bool] = ..., pushed: _Optional[int] = ..., joins: _Optional[int] = ..., cause: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., process: _Optional[str] = ..., program: _Optional[str] = ..., reading_first_batch: _Optional[bool] = ...) -> None: ...

class ShardState(_message.Message):
    __slots__ = ("run", "phase", "generation", "step", "final_step", "layout_digest", "pushed", "used", "staleness", "parts", "workers", "outcome", "optimizer", "slots", "waiting_secs", "cause", "model_bytes", "first_step", "epoch", "quorum", "stop_signal", "reading_first_batch", "hold_at", "process", "readers", "exchange_port", "job_digest", "tables")
    class TablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FINAL_STEP_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    STOP_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    READING_FIRST_BATCH_FIELD_NUMBER: _ClassVar[int]
    HOLD_AT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_PORT_FIELD_NUMBER: _ClassVar[int]
    JOB_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    run: str
    phase: Phase
    generation: int
    step: int
    final_step: int
    layout_digest: str
    pushed: _containers.RepeatedScalarFieldContainer[int]
    used: _containers.RepeatedScalarFieldContainer[int]
    staleness: _containers.RepeatedScalarFieldContainer[int]
    parts: _containers.RepeatedCompositeFieldContainer[SavedPart]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    outcome: Outcome
    optimizer: str
    slots: _containers.RepeatedScalarFieldContainer[str]
    waiting_secs: float
    cause: str
    model_bytes: int
    first_step: int
    epoch: int
    quorum: int
    stop_signal: int
    reading_first_batch: bool
    hold_at: int
    process: str
    readers: _containers.RepeatedCompositeFieldContainer[Reader]
    exchange_port: int
    job_digest: str
    tables: _containers.ScalarMap[str, str]
    def __init__(self, run: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., final_step: _Optional[int] = ..., layout_digest: _Optional[str] = ..., pushed: _Optional[_Iterable[int]] = ..., used: _Optional[_Iterable[int]] = ..., staleness: _Optional[_Iterable[int]] = ..., parts: _Optional[_Iterable[_Union[SavedPart, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., optimizer: _Optional[str] = ..., slots: _Optional[_Iterable[str]] = ..., waiting_secs: _Optional[float] = ..., cause: _Optional[str] = ..., model_bytes: _Optional[int] = ..., first_step: _Optional[int] = ..., epoch: _Optional[int] = ..., quorum: _Optional[int] = ..., stop_signal: _Optional[int] = ..., reading_first_batch: _Optional[bool] = ..., hold_at: _Optional[int] = ..., process: _Optional[str] = ..., readers: _Optional[_Iterable[_Union[Reader, _Mapping]]] = ..., exchange_port: _Optional[int] = ..., job_digest: _Optional[str] = ..., tables: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class ConfigureRequest(_message.Message):
    __slots__ = ("caller", "generation", "job_json", "layout_json", "checkpoint_folder", "checkpoints_root", "shard", "update_json", "reductions", "hold_at", "job_digest")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_JSON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FOLDER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_ROOT_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    UPDATE_JSON_FIELD_NUMBER: _ClassVar[int]
    REDUCTIONS_FIELD_NUMBER: _ClassVar[int]
    HOLD_AT_FIELD_NUMBER: _ClassVar[int]
    JOB_DIGEST_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    generation: int
    job_json: str
    layout_json: str
    checkpoint_folder: str
    checkpoints_root: str
    shard: int
    update_json: str
    reductions: _containers.RepeatedScalarFieldContainer[int]
    hold_at: int
    job_digest: str
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., generation: _Optional[int] = ..., job_json: _Optional[str] = ..., layout_json: _Optional[str] = ..., checkpoint_folder: _Optional[str] = ..., checkpoints_root: _Optional[str] = ..., shard: _Optional[int] = ..., update_json: _Optional[str] = ..., reductions: _Optional[_Iterable[int]] = ..., hold_at: _Optional[int] = ..., job_digest: _Optional[str] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("configure", "origin", "vector", "start", "data", "sha256")
    CONFIGURE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    configure: ConfigureRequest
    origin: ShardOrigin
    vector: str
    start: int
    data: bytes
    sha256: str
    def __init__(self, configure: _Optional[_Union[ConfigureRequest, _Mapping]] = ..., origin: _Optional[_Union[ShardOrigin, _Mapping]] = ..., vector: _Optional[str] = ..., start: _Optional[int] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class ShardOrigin(_message.Message):
    __slots__ = ("step", "optimizer", "slots", "scalars")
    class ScalarsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    step: int
    optimizer: str
    slots: _containers.RepeatedScalarFieldContainer[str]
    scalars: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., optimizer: _Optional[str] = ..., slots: _Optional[_Iterable[str]] = ..., scalars: _Optional[_Mapping[str, float]] = ...) -> None: ...

class FetchPartRequest(_message.Message):
    __slots__ = ("caller", "generation", "step")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    generation: int
    step: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class PartChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ReleasePartRequest(_message.Message):
    __slots__ = ("caller", "generation", "step", "error")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    generation: int
    step: int
    error: str
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class ReleasePartReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("caller", "index", "worker_limit", "cause", "process", "address", "incarnation", "joins", "known", "program", "program_files")
    class ProgramFilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CALLER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WORKER_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FILES_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    index: int
    worker_limit: int
    cause: str
    process: str
    address: str
    incarnation: int
    joins: int
    known: _containers.RepeatedCompositeFieldContainer[WorkerState]
    program: str
    program_files: _containers.ScalarMap[str, str]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., index: _Optional[int] = ..., worker_limit: _Optional[int] = ..., cause: _Optional[str] = ..., process: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., joins: _Optional[int] = ..., known: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., program: _Optional[str] = ..., program_files: _Optional[_Mapping[str, str]] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("index", "joins", "incarnation")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    joins: int
    incarnation: int
    def __init__(self, index: _Optional[int] = ..., joins: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("caller", "step", "pushed", "leaving", "generation", "address", "joins", "beat", "reading_first_batch", "program", "passes")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    READING_FIRST_BATCH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    step: int
    pushed: int
    leaving: bool
    generation: int
    address: str
    joins: int
    beat: int
    reading_first_batch: bool
    program: str
    passes: _containers.RepeatedCompositeFieldContainer[Pass]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., step: _Optional[int] = ..., pushed: _Optional[int] = ..., leaving: _Optional[bool] = ..., generation: _Optional[int] = ..., address: _Optional[str] = ..., joins: _Optional[int] = ..., beat: _Optional[int] = ..., reading_first_batch: _Optional[bool] = ..., program: _Optional[str] = ..., passes: _Optional[_Iterable[_Union[Pass, _Mapping]]] = ...) -> None: ...

class Pass(_message.Message):
    __slots__ = ("loader", "process", "number", "examples", "size", "ended", "lost", "epoch")
    LOADER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    loader: int
    process: str
    number: int
    examples: int
    size: int
    ended: bool
    lost: bool
    epoch: int
    def __init__(self, loader: _Optional[int] = ..., process: _Optional[str] = ..., number: _Optional[int] = ..., examples: _Optional[int] = ..., size: _Optional[int] = ..., ended: _Optional[bool] = ..., lost: _Optional[bool] = ..., epoch: _Optional[int] = ...) -> None: ...

class Reader(_message.Message):
    __slots__ = ("member", "is_alive", "passes", "step")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    IS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    member: Member
    is_alive: bool
    passes: _containers.RepeatedCompositeFieldContainer[Pass]
    step: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., is_alive: _Optional[bool] = ..., passes: _Optional[_Iterable[_Union[Pass, _Mapping]]] = ..., step: _Optional[int] = ...) -> None: ...

class ScheduleCheckpointRequest(_message.Message):
    __slots__ = ("caller", "generation", "step", "stop", "signal")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    generation: int
    step: int
    stop: bool
    signal: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., stop: _Optional[bool] = ..., signal: _Optional[int] = ...) -> None: ...

class ScheduleCheckpointReply(_message.Message):
    __slots__ = ("accepted", "step")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    step: int
    def __init__(self, accepted: _Optional[bool] = ..., step: _Optional[int] = ...) -> None: ...

class ScheduleReductionsRequest(_message.Message):
    __slots__ = ("caller", "generation", "reductions", "pause_at", "number")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REDUCTIONS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_AT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    generation: int
    reductions: _containers.RepeatedScalarFieldContainer[int]
    pause_at: int
    number: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., generation: _Optional[int] = ..., reductions: _Optional[_Iterable[int]] = ..., pause_at: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class ScheduleReductionsReply(_message.Message):
    __slots__ = ("accepted", "step")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    step: int
    def __init__(self, accepted: _Optional[bool] = ..., step: _Optional[int] = ...) -> None: ...

class ScheduleHoldRequest(_message.Message):
    __slots__ = ("caller", "generation", "step", "number")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    generation: int
    step: int
    number: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class ScheduleHoldReply(_message.Message):
    __slots__ = ("accepted", "step")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    step: int
    def __init__(self, accepted: _Optional[bool] = ..., step: _Optional[int] = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("caller", "outcome")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    outcome: Outcome
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class ResetReply(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("fleet", "version", "job", "address", "index")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    version: str
    job: str
    address: str
    index: int
    def __init__(self, fleet: _Optional[str] = ..., version: _Optional[str] = ..., job: _Optional[str] = ..., address: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class AttendReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CleanupAllRequest(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, container: _Optional[_Iterable[str]] = ...) -> None: ...
