"""What a service process is told by its environment; the only place that reads it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from psfleet.addresses import DATA_PORT, Address, parse_tf_config
from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job

JOB = "PSFLEET_JOB"
PROGRAM_FOLDER = "PSFLEET_PROGRAM_FOLDER"
RUN = "PSFLEET_RUN"
INDEX = "PSFLEET_INDEX"
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an indexed job."""
PS = "PSFLEET_PS"
ADDRESS = "PSFLEET_ADDRESS"
OUT = "PSFLEET_OUT"
PARENT = "PSFLEET_PARENT_PID"
CAUSE = "PSFLEET_CAUSE"
METRICS_PORT = "PSFLEET_METRICS_PORT"
TLS = "PSFLEET_TLS"
RECORDS = "PSFLEET_RECORDS"
ON_SIGTERM = "PSFLEET_ON_SIGTERM"
START = "PSFLEET_START"
FORK_SERVER = "PSFLEET_FORK_SERVER"
NO_FORK_SERVER = "none"
LEAVE = "leave"

RECONNECT = (
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
)
"""Of every channel between two processes: a peer that comes back, at another address too, is found within a second or
two. By itself gRPC waits 20 s for a connection, and 30 s until it looks up a name again."""

_CHANNEL_OPTIONS = ",".join(
    (
        "grpc.keepalive_time_ms=10000",
        "grpc.keepalive_timeout_ms=5000",
        "grpc.http2.ping_timeout_ms=5000",
        "grpc.http2.bdp_probe=0",
        "grpc.http2.lookahead_bytes=8388608",
        "grpc.http2.max_frame_size=1048576",
        *(f"{name}={value}" for name, value in RECONNECT),
    )
)
"""Of the channels between TensorFlow's servers.

Keepalive notices a frozen peer. HTTP/2's own window of 64 KiB, which stays so once the probe for bandwidth is off,
and its frames of 16 KiB took 15 % of a step of 118 thousand parameters and 5 % of one of 1.9 million.
"""

MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(1024 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
}
"""Has glibc keep freed memory (mallopt(3)): the kernel clears each fresh page of each tensor otherwise, which took
5 % of a step of 1.9 million parameters. docker/Dockerfile sets the same."""

_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "TF_", "KERAS_", "CUDA_", "NVIDIA_", "XLA_", "OMP_", "OPENBLAS_", "GRPC_")


@dataclass(frozen=True)
class Settings:
    """The place of one process in a fleet.

    Attributes:
        job: The resolved job (a path, or the JSON itself); None for a ps that serves any run.
        program_folder: Searched first for the program's module.
        run: Names the run; empty for a ps that serves any.
        index: Of the ps, or of the worker; -1: to be leased from ps 0.
        ps: All parameter servers in their order.
        address: Where peers reach this process.
        out: The run's folder.
        parent_pid: The launcher, with which this process dies; 0: none.
        cause: Why the launcher started this process again; empty the first time.
        metrics_port: Where Prometheus finds this process's metrics; 0: nowhere.
        tls: Folder with ca.crt, tls.crt and tls.key, which all peers have, too; None: nothing is encrypted.
        records: Where a container that is started again, whatever its exit code was, finds how it ended; None:
            who starts processes again knows it (see `psfleet.service.exit_records`).
        leaves_on_sigterm: Whether SIGTERM asks the chief, too, to make room for a process that takes its place
            (Kubernetes evicts pods and drains nodes), rather than to save and end the run.
        start: A name for this start of the run, the same in each process that takes another's place; empty: none.
    """

    job: Job | None
    program_folder: Path
    run: str
    index: int
    ps: tuple[Address, ...]
    address: Address
    out: Path
    parent_pid: int
    cause: str
    metrics_port: int = 0
    tls: Path | None = None
    records: Path | None = None
    leaves_on_sigterm: bool = False
    start: str = ""


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings of this process.

    Raises:
        BadJobError: A setting is missing or is not what it should be; names the variable.
    """
    env = os.environ if environ is None else environ
    ps: list[Address] = []
    index = None
    if env.get("TF_CONFIG"):
        ps, _, index = parse_tf_config(env["TF_CONFIG"])
    if env.get(PS):
        ps = [_address(PS, text) for text in env[PS].split(",")]
    index_name = next((name for name in (INDEX, COMPLETION_INDEX) if env.get(name)), "TF_CONFIG")
    index_text = env.get(index_name) if index_name != "TF_CONFIG" else str(-1 if index is None else index)
    return Settings(
        job=_job(env[JOB]) if env.get(JOB) else None,
        program_folder=Path(env.get(PROGRAM_FOLDER) or "."),
        run=_run(env.get(RUN, "")),
        index=_integer(index_name, index_text or ""),
        ps=tuple(ps),
        address=_address(ADDRESS, env.get(ADDRESS) or f"{os.uname().nodename}:{DATA_PORT}"),
        out=Path(env.get(OUT) or "."),
        parent_pid=_integer(PARENT, env.get(PARENT) or "0"),
        cause=env.get(CAUSE, ""),
        metrics_port=_integer(METRICS_PORT, env.get(METRICS_PORT) or "0"),
        tls=Path(env[TLS]) if env.get(TLS) else None,
        records=Path(env[RECORDS]) if env.get(RECORDS) else None,
        leaves_on_sigterm=_leaves(env.get(ON_SIGTERM, "")),
        start=env.get(START, ""),
    )


def for_child(told: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service process: this one's, memory settings unless it has its own, and what it is told."""
    return {**MEMORY, **os.environ, **told}


def read_at_start(environ: Mapping[str, str] | None = None) -> set[tuple[str, str]]:
    """The variables that the interpreter, glibc and TensorFlow read once, when they are loaded: (name, value) pairs."""
    env = os.environ if environ is None else environ
    return {item for item in env.items() if item[0].startswith(_READ_AT_START)}


def replace_environment(environment: Mapping[str, str]) -> None:
    """Gives this process another environment."""
    os.environ.clear()
    os.environ.update(environment)


def fork_server() -> str:
    """Where the local launcher has its processes forked.

    Empty: by a fork server of its own. `none`: each process starts alone. A path: by the standing fork server at this
    Unix socket, which runs code for whoever can open it, and so is its owner's alone (mode 0600); the tests have one.
    """
    return os.environ.get(FORK_SERVER, "")


def prepare_tensorflow(environ: MutableMapping[str, str] | None = None) -> None:
    """Sets what TensorFlow reads when it is imported: quiet logs, and channels that notice a frozen peer."""
    env = os.environ if environ is None else environ
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("TF_GRPC_DEFAULT_OPTIONS", _CHANNEL_OPTIONS)
    env.setdefault("KERAS_BACKEND", "tensorflow")


def _job(text: str) -> Job:
    is_content = text.lstrip().startswith("{")
    path = "its own text" if is_content else text
    try:
        content = json.loads(text if is_content else Path(path).read_text())
    except OSError as error:
        raise BadJobError(f"{JOB} is {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadJobError(f"{JOB} is {path}: expected a resolved job as JSON") from error
    if not isinstance(content, dict):
        raise BadJobError(f"{JOB} is {path}: expected a resolved job as JSON")
    return parse_job(content, source=path)


def _address(name: str, text: str) -> Address:
    try:
        return Address.parse(text)
    except BadJobError as error:
        raise BadJobError(f"{name}: {error}") from error


def _run(text: str) -> str:
    """The name of a run: part of a TensorFlow container's (see `psfleet.tf.container_name`)."""
    if text and not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9.-]*", text):
        raise BadJobError(f"{RUN} is {text!r}, expected letters, digits, dots and dashes")
    return text


def _leaves(text: str) -> bool:
    if text not in ("", LEAVE):
        raise BadJobError(f"{ON_SIGTERM} is {text!r}, expected {LEAVE} or nothing")
    return bool(text)


def _integer(name: str, text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise BadJobError(f"{name} is {text!r}, expected a whole number")
    return int(text)
