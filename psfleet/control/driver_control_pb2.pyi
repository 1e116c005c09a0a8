from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DriverCall(_message.Message):
    __slots__ = ("run", "version", "index", "process")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: str
    index: int
    process: str
    def __init__(self, run: _Optional[str] = ..., version: _Optional[str] = ..., index: _Optional[int] = ..., process: _Optional[str] = ...) -> None: ...

class BeatReply(_message.Message):
    __slots__ = ("over", "exit_code")
    OVER_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    over: bool
    exit_code: int
    def __init__(self, over: _Optional[bool] = ..., exit_code: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("caller", "name")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    caller: DriverCall
    name: str
    def __init__(self, caller: _Optional[_Union[DriverCall, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class FileMessage(_message.Message):
    __slots__ = ("caller", "name", "data", "sha256")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    caller: DriverCall
    name: str
    data: bytes
    sha256: str
    def __init__(self, caller: _Optional[_Union[DriverCall, _Mapping]] = ..., name: _Optional[str] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class DeliverReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FailRequest(_message.Message):
    __slots__ = ("caller", "exit_code", "message", "details")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    caller: DriverCall
    exit_code: int
    message: str
    details: str
    def __init__(self, caller: _Optional[_Union[DriverCall, _Mapping]] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class FailReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
