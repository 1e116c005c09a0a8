"""Settings of a service process; the only module that reads environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from psfleet.addresses import DATA_PORT, Address, TfConfig, parse_tf_config
from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import Job, job_from_json
from psfleet.service.channel_options import TENSORFLOW

JOB = "PSFLEET_JOB"
PROGRAM_FOLDER = "PSFLEET_PROGRAM_FOLDER"
RUN = "PSFLEET_RUN"
INDEX = "PSFLEET_INDEX"
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an Indexed Job."""
FIRST_INDEX = "PSFLEET_FIRST_INDEX"
"""Added to COMPLETION_INDEX: a Job counts from 0, and the index 0 of workers is the chief's, in a Job of its own."""
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
LAUNCHED = "PSFLEET_LAUNCHED_MS"
THREADS = "PSFLEET_THREADS"
LOG = "PSFLEET_LOG"
TEXT = "text"
"""Value of LOG: log lines for readers instead of JSON."""
TF_CONFIG = "TF_CONFIG"
"""Set by launchers of TensorFlow jobs."""
FORK_SERVER = "PSFLEET_FORK_SERVER"
NO_FORK_SERVER = "none"
"""Value of FORK_SERVER: each process starts in a new interpreter."""
LEAVE = "leave"
"""Value of ON_SIGTERM: see `Settings.leaves_on_sigterm`."""

MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(1024 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
}
"""Makes glibc keep freed memory (mallopt(3)): otherwise the kernel clears each new page of each tensor, which took 5 %
of a step with 1.9 million parameters. docker/Dockerfile sets the same values."""

_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "TF_", "KERAS_", "CUDA_", "NVIDIA_", "XLA_", "OMP_", "OPENBLAS_", "GRPC_")


@dataclass(frozen=True)
class Settings:
    """Settings of one process of a fleet.

    Attributes:
        job: The resolved job; None for a ps that serves any run.
        program_folder: The folder that is searched first for the program's module.
        run: Identifier of the run; empty for a ps that serves any run.
        index: Index of the ps or worker; -1: the worker leases one from ps 0.
        ps: Addresses of all parameter servers, by index.
        address: Address at which peers reach this process.
        out: The run folder.
        parent_pid: Process id of the launcher; this process is killed when the launcher dies. 0: none.
        cause: Cause of the restart of this process; empty at its first start.
        metrics_port: Port of the metrics endpoint for Prometheus; 0: disabled.
        tls: Folder with ca.crt, tls.crt and tls.key; None: no TLS.
        records: Folder of exit records (see `psfleet.service.exit_records`); None: the platform decides about restarts.
        leaves_on_sigterm: Whether the chief, too, exits at SIGTERM and is replaced (Kubernetes evicts pods and drains
            nodes), instead of writing a checkpoint and ending the run.
        start: Identifier of this attempt of the run, which replacements of a process share; empty: none.
        launched: When a local launcher started the attempt, in seconds since 1970; 0: there is none.
        logs_text: Whether the log is text for readers instead of JSON lines.
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
    launched: float = 0.0
    logs_text: bool = False


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings of this process.

    Raises:
        BadJobError: A setting is missing or invalid; names the variable.
    """
    env = os.environ if environ is None else environ
    config = tf_config(env)
    if config is None:
        config = TfConfig(())
    elif not config.ps and not env.get(PS):
        raise BadJobError(f"{TF_CONFIG} has no cluster.ps, expected it or {PS}")
    own_address = config.address.data if config.address else f"{os.uname().nodename}:{DATA_PORT}"
    return Settings(
        job=_job(env[JOB]) if env.get(JOB) else None,
        program_folder=Path(env.get(PROGRAM_FOLDER) or "."),
        run=_run(env.get(RUN, "")),
        index=_index(env, config.index),
        ps=tuple(_address(PS, text) for text in env[PS].split(",")) if env.get(PS) else config.ps,
        address=_address(ADDRESS, env.get(ADDRESS) or own_address),
        out=Path(env.get(OUT) or "."),
        parent_pid=_integer(PARENT, env.get(PARENT) or "0"),
        cause=env.get(CAUSE, ""),
        metrics_port=_integer(METRICS_PORT, env.get(METRICS_PORT) or "0"),
        tls=Path(env[TLS]) if env.get(TLS) else None,
        records=Path(env[RECORDS]) if env.get(RECORDS) else None,
        leaves_on_sigterm=_leaves(env.get(ON_SIGTERM, "")),
        start=env.get(START) or (os.uname().nodename if env.get(RECORDS) else ""),
        launched=_integer(LAUNCHED, env.get(LAUNCHED) or "0") / 1000,
        logs_text=logs_text(env),
    )


def tf_config(environ: Mapping[str, str] | None = None) -> TfConfig | None:
    """TF_CONFIG of this process; None if it is not set.

    Raises:
        BadJobError: It is not valid.
    """
    text = (os.environ if environ is None else environ).get(TF_CONFIG)
    return parse_tf_config(text) if text else None


def logs_text(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process logs text for readers; known before other settings are, whose errors are logged."""
    return (os.environ if environ is None else environ).get(LOG) == TEXT


def num_threads(environ: Mapping[str, str] | None = None) -> int:
    """Threads of TensorFlow where the job leaves the number open; 0: not set."""
    return _integer(THREADS, (os.environ if environ is None else environ).get(THREADS) or "0")


def for_child(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment of a service process: MEMORY, overridden by this process's environment, then by `variables`."""
    return {**MEMORY, **os.environ, **variables}


def require_tensorflow() -> None:
    """Checks that TensorFlow is installed, without importing it, which takes seconds.

    Raises:
        UsageError: TensorFlow is not installed.
    """
    if find_spec("tensorflow") is None:
        raise UsageError("TensorFlow is not installed, expected an extra: pip install 'psfleet[cpu]' or 'psfleet[gpu]'")


def read_at_start(environ: Mapping[str, str] | None = None) -> set[tuple[str, str]]:
    """(name, value) of what the interpreter, glibc and TensorFlow read once, when loaded; they read TF_CONFIG later."""
    env = os.environ if environ is None else environ
    return {item for item in env.items() if item[0].startswith(_READ_AT_START) and item[0] != TF_CONFIG}


def replace_environment(environment: Mapping[str, str]) -> None:
    """Gives this process another environment."""
    os.environ.clear()
    os.environ.update(environment)


def fork_server() -> str:
    """Which fork server the local launcher uses; empty: its own; `none`: each process starts in a new interpreter.

    A path: the fork server that listens at this Unix socket. It runs code for everyone who can open the socket, whose
    mode must therefore be 0600; the tests share such a server.
    """
    return os.environ.get(FORK_SERVER, "")


def prepare_tensorflow(environ: MutableMapping[str, str] | None = None) -> None:
    """Sets the variables that TensorFlow reads when it is imported; the user's own values stay.

    The log is quiet, channels between TensorFlow's servers detect an unresponsive peer, and TensorFlow is Keras's
    backend.

    Raises:
        UsageError: TensorFlow is not installed.
    """
    require_tensorflow()
    env = os.environ if environ is None else environ
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("TF_GRPC_DEFAULT_OPTIONS", TENSORFLOW)
    env.setdefault("KERAS_BACKEND", "tensorflow")


def _job(text: str) -> Job:
    if text.lstrip().startswith("{"):
        return job_from_json(text, JOB)
    source = f"{JOB} is {text}"
    try:
        return job_from_json(Path(text).read_text(encoding="utf-8"), source)
    except OSError as error:
        raise BadJobError(f"{source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadJobError(f"{source}: expected a resolved job as JSON") from error


def _address(name: str, text: str) -> Address:
    try:
        return Address.parse(text)
    except BadJobError as error:
        raise BadJobError(f"{name}: {error}") from error


def _run(text: str) -> str:
    """Validates a run's identifier, which is part of a TensorFlow container's name (`psfleet.tf.container_name`)."""
    if text and not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9.-]*", text):
        raise BadJobError(f"{RUN} is {text!r}, expected letters, digits, dots and dashes")
    return text


def _index(env: Mapping[str, str], tf_config_index: int | None) -> int:
    """The index of this process: of psfleet's own variable, or of an Indexed Job, or of TF_CONFIG; -1 without any."""
    if env.get(INDEX):
        return _integer(INDEX, env[INDEX])
    if env.get(COMPLETION_INDEX):
        return _integer(COMPLETION_INDEX, env[COMPLETION_INDEX]) + _integer(FIRST_INDEX, env.get(FIRST_INDEX) or "0")
    return -1 if tf_config_index is None else tf_config_index


def _leaves(text: str) -> bool:
    if text not in ("", LEAVE):
        raise BadJobError(f"{ON_SIGTERM} is {text!r}, expected {LEAVE} or nothing")
    return bool(text)


def _integer(name: str, text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise BadJobError(f"{name} is {text!r}, expected a whole number")
    return int(text)
