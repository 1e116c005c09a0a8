"""Settings of a service process; the only module that reads psfleet's environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from psfleet.addresses import DATA_PORT, Address, TfConfig, parse_tf_config
from psfleet.errors import BadJobError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.job import Job, job_from_json
from psfleet.job.prediction_order import PredictionOrder
from psfleet.job.sections import Device
from psfleet.job.service_access import ServiceAccess
from psfleet.job.trial_access import TrialAccess
from psfleet.service import setting_values as values

JOB = "PSFLEET_JOB"
FLEET = "PSFLEET_FLEET"
"""The standing fleet of a process or client: JSON, or the path of a file."""
TRIALS = "PSFLEET_TRIALS"
DRIVER = "PSFLEET_DRIVER"
LIFE = "PSFLEET_LIFE"
STUDY = "PSFLEET_STUDY"
PREDICTION = "PSFLEET_PREDICTION"
SERVICE = "PSFLEET_SERVICE"
PROGRAM_FOLDER = "PSFLEET_PROGRAM_FOLDER"
RUN = "PSFLEET_RUN"
INDEX = "PSFLEET_INDEX"
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an Indexed Job."""
FIRST_INDEX = "PSFLEET_FIRST_INDEX"
"""Added to COMPLETION_INDEX: a Job counts from 0, and the index 0 of workers is the chief's, in a Job of its own."""
PS = "PSFLEET_PS"
LOADERS = "PSFLEET_LOADERS"
ADDRESS = "PSFLEET_ADDRESS"
OUT = "PSFLEET_OUT"
PARENT = "PSFLEET_PARENT_PID"
CAUSE = "PSFLEET_CAUSE"
METRICS_PORT = "PSFLEET_METRICS_PORT"
TLS = "PSFLEET_TLS"
RECORDS = "PSFLEET_RECORDS"
FAILURE = "PSFLEET_FAILURE"
ON_SIGTERM = "PSFLEET_ON_SIGTERM"
HOLD = "PSFLEET_HOLD"
START = "PSFLEET_START"
LAUNCHED = "PSFLEET_LAUNCHED_MS"
THREADS = "PSFLEET_THREADS"
LOG = "PSFLEET_LOG"
TEXT = "text"
"""Value of LOG: log lines for readers instead of JSON."""
TF_CONFIG = "TF_CONFIG"
STATE = "PSFLEET_STATE"
FORK_SERVER = "PSFLEET_FORK_SERVER"
NO_FORK_SERVER = "none"
"""Value of FORK_SERVER: each process starts in a new interpreter."""
LEAVE = "leave"
"""Value of ON_SIGTERM: see `Settings.leaves_on_sigterm`."""
HELD_AT_START = "start"
"""Value of HOLD: see `Settings.is_held`."""


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
        loaders: Addresses of all loaders, by index, and in containers of those that can be added.
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
        fleet: The standing fleet that this process belongs to; None: it belongs to a run's fleet.
        is_held: Whether the chief holds a new attempt of the run at the step that it starts from: see `psfleet.start`.
        trials: The study whose trials this worker takes; None: it takes none.
        study: The study that this process drives, as JSON; empty: none.
        prediction: What this process has predicted, as a driver; None: nothing.
        driver: Address of the driver of this worker's study or prediction; None: it started this process.
        life: The file that this worker of a driver, or its parent, renews each second; that of a worker has the name
            of its process. None: none.
        service: The service that this front or member belongs to; None: it belongs to none.
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
    fleet: FleetAccess | None = None
    is_held: bool = False
    trials: TrialAccess | None = None
    study: str = ""
    prediction: PredictionOrder | None = None
    driver: Address | None = None
    life: Path | None = None
    service: ServiceAccess | None = None
    loaders: tuple[Address, ...] = ()

    @property
    def device(self) -> Device | None:
        """Threads and accelerators, of the job or of the standing fleet; None: TensorFlow's defaults."""
        source = self.job or self.fleet
        return source.device if source is not None else None


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the settings of this process.

    Raises:
        BadJobError: A setting is missing or invalid; names the variable.
    """
    env = os.environ if environ is None else environ
    config = tf_config(env) or TfConfig(())
    if env.get(TF_CONFIG) and not config.ps and not env.get(PS):
        raise BadJobError(f"{TF_CONFIG} has no cluster.ps, expected it or {PS}")
    own_address = config.address.data if config.address else f"{os.uname().nodename}:{DATA_PORT}"
    return Settings(
        job=job_from_json(*values.document(JOB, env[JOB], "a resolved job")) if env.get(JOB) else None,
        program_folder=Path(env.get(PROGRAM_FOLDER) or "."),
        run=values.identifier(RUN, env.get(RUN, "")),
        index=values.index(env, INDEX, (COMPLETION_INDEX, FIRST_INDEX), config.index),
        ps=tuple(values.address(PS, text) for text in env[PS].split(",")) if env.get(PS) else config.ps,
        address=values.address(ADDRESS, env.get(ADDRESS) or own_address),
        out=Path(env.get(OUT) or "."),
        parent_pid=values.integer(PARENT, env.get(PARENT) or "0"),
        cause=env.get(CAUSE, ""),
        metrics_port=values.integer(METRICS_PORT, env.get(METRICS_PORT) or "0"),
        tls=Path(env[TLS]) if env.get(TLS) else None,
        records=Path(env[RECORDS]) if env.get(RECORDS) else None,
        leaves_on_sigterm=values.choice(ON_SIGTERM, env.get(ON_SIGTERM, ""), LEAVE),
        start=env.get(START) or (os.uname().nodename if env.get(RECORDS) else ""),
        launched=values.integer(LAUNCHED, env.get(LAUNCHED) or "0") / 1000,
        logs_text=logs_text(env),
        fleet=fleet_access(env),
        is_held=values.choice(HOLD, env.get(HOLD, ""), HELD_AT_START),
        trials=values.trial_access(TRIALS, env.get(TRIALS, "")),
        study=env.get(STUDY, ""),
        prediction=values.prediction_order(PREDICTION, env.get(PREDICTION, "")),
        driver=values.address(DRIVER, env[DRIVER]) if env.get(DRIVER) else None,
        life=Path(env[LIFE]) if env.get(LIFE) else None,
        service=values.service_access(SERVICE, env.get(SERVICE, "")),
        loaders=tuple(values.address(LOADERS, text) for text in env.get(LOADERS, "").split(",") if text),
    )


def fleet_access(environ: Mapping[str, str] | None = None) -> FleetAccess | None:
    """The standing fleet of this process, which is one of its processes or a client; None: it is neither.

    Raises:
        BadJobError: The variable has another value.
    """
    text = (os.environ if environ is None else environ).get(FLEET)
    return FleetAccess.from_json(*values.document(FLEET, text, "access to a standing fleet")) if text else None


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Absolute path of what psfleet keeps for this user between commands; see the XDG Base Directory Specification."""
    env = os.environ if environ is None else environ
    folder = Path(env.get(STATE) or Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "psfleet")
    return folder.absolute()


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


def failure_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where this process writes why it has failed for good, and then waits; None: it ends.

    For engines that would start it again for ever. Known before other settings are, which may be why it fails.
    """
    text = (os.environ if environ is None else environ).get(FAILURE)
    return Path(text) if text else None


def num_threads(environ: Mapping[str, str] | None = None) -> int:
    """Threads of TensorFlow where the job leaves the number open; 0: not set."""
    return values.integer(THREADS, (os.environ if environ is None else environ).get(THREADS) or "0")


def variables(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of these variables that have a value, in the order of `names`."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in names if env.get(name)}


def fork_server() -> str:
    """Which fork server the local launcher uses; empty: its own; `none`: each process starts in a new interpreter.

    A path: the fork server that listens at this Unix socket, which has mode 0600: it runs code for all who can open it.
    """
    return os.environ.get(FORK_SERVER, "")
