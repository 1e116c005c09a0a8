"""Workers that are containers, as their driver sees them, and what they hear at its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from optuna.storages._grpc.server import make_server
from support.driver_control import CALL_SECS, NEW, OLD, RUN

from psfleet.addresses import Address
from psfleet.control.credentials import STUDY_STORAGE, channel
from psfleet.control.driver_client import INDEX_KEY, PROCESS_KEY, DriverClient
from psfleet.control.worker_registry import Failure, WorkerRegistry
from psfleet.driver import containers
from psfleet.driver.containers import ContainerWorker, container_workers
from psfleet.errors import LostPeerError, ProgramError, PsfleetError, ReplacedError
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.sweep.database import optuna_module
from psfleet.tls import certificates
from psfleet.tls.identity import Identity

METHOD = f"/{STUDY_STORAGE}/GetTrial"


def joined_worker() -> tuple[ContainerWorker, WorkerRegistry]:
    registry = WorkerRegistry(1)
    worker = ContainerWorker(registry, 0)
    worker.start()
    assert not worker.is_there()
    registry.beat(0, OLD)
    assert worker.is_there()
    return worker, registry


def test_a_process_that_has_joined_lives_until_another_one_does() -> None:
    worker, registry = joined_worker()
    first = worker.newest_sign()
    registry.beat(0, OLD)
    assert worker.newest_sign() != first
    assert worker.exit_code() is None
    registry.beat(0, NEW)
    assert (worker.exit_code(), worker.cause_of_end()) == (137, "another process has taken its place")
    worker.start(worker.cause_of_end())
    assert worker.is_there()
    assert worker.exit_code() is None


def test_a_process_that_has_failed_is_not_taken_for_the_next_one() -> None:
    worker, registry = joined_worker()
    registry.fail(0, OLD, Failure(75, "the disk is full", ""))
    assert worker.exit_code() == 75
    assert worker.failure() == {"exit_code": 75, "message": "the disk is full", "details": ""}
    assert worker.cause_of_end() == "the disk is full (exit code 75)"
    worker.start(worker.cause_of_end())
    assert not worker.is_there()
    registry.beat(0, OLD)
    assert not worker.is_there(), "it has not ended yet"
    registry.beat(0, NEW)
    assert worker.is_there()
    assert worker.exit_code() is None


@pytest.mark.parametrize(("code", "cause"), [(0, "it ended"), (3, "exit code 3"), (137, "killed by SIGKILL")])
def test_a_process_that_has_not_said_why_it_ended_has_no_failure(code: int, cause: str) -> None:
    worker, registry = joined_worker()
    registry.fail(0, OLD, Failure(code, "", ""))
    assert (worker.exit_code(), worker.failure(), worker.cause_of_end()) == (code, None, cause)


def test_a_process_that_is_killed_is_refused() -> None:
    worker, registry = joined_worker()
    worker.kill()
    assert (worker.exit_code(), worker.cause_of_end()) == (137, "it was given up")
    with pytest.raises(ReplacedError):
        registry.beat(0, OLD)
    worker.start("it was given up")
    assert not worker.is_there()


class Driver:
    """The block of a driver with two workers, on a thread.

    Attributes:
        address: Of the driver.
    """

    def __init__(self, error: PsfleetError | None, identity: Identity | None = None, storage: str = "") -> None:
        (self.address,) = free_addresses(1)
        self._error = error
        self._identity = identity
        self._storage = storage
        self._is_there, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Driver:
        self._thread.start()
        assert self._is_there.wait(CALL_SECS)
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._thread.join()

    def end(self) -> None:
        self._may_end.set()

    def has_ended(self, timeout_secs: float) -> bool:
        self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def new_client(self, index: int) -> DriverClient:
        return DriverClient(self.address, RUN, index, CALL_SECS, None)

    def client(self, index: int) -> DriverClient:
        client = self.new_client(index)
        client.join()
        return client

    def _run(self) -> None:
        workers = container_workers(
            self.address, RUN, 2, self._identity, lambda name: None, lambda index, name: None, self._storage
        )
        # The error that ends the block, or none.
        with suppress(PsfleetError), workers:
            self._is_there.set()
            assert self._may_end.wait(CALL_SECS)
            if self._error is not None:
                raise self._error


@pytest.mark.parametrize(("error", "code"), [(None, 0), (ProgramError("NaN"), 70)])
def test_workers_end_with_the_code_of_their_driver_also_if_they_join_late(
    error: PsfleetError | None, code: int
) -> None:
    with Driver(error) as driver:
        first = driver.client(0)
        assert first.beat() is None
        driver.end()
        heard = wait_until(first.beat, CALL_SECS, "the end", done=lambda seen: seen is not None)
        assert heard == code
        assert driver.new_client(1).join() == code


def test_workers_of_a_driver_with_a_temporary_error_wait_for_the_next_one() -> None:
    heard = []
    with Driver(LostPeerError("no worker")) as driver:
        first = driver.client(0)
        driver.end()
        # Until the driver has gone.
        with suppress(LostPeerError):
            while True:
                heard.append(first.beat())
    assert set(heard) <= {None}


def test_a_worker_that_starts_when_its_driver_ends_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "RELEASE_SECS", 0.0)
    with Driver(None) as driver:
        first = driver.client(0)
        driver.end()
        wait_until(first.beat, CALL_SECS, "the end", done=lambda seen: seen is not None)
        # The other one imports TensorFlow meanwhile.
        assert not driver.has_ended(0.3)
        assert driver.new_client(1).join() == 0, "the driver waits for no further call"
        assert driver.has_ended(CALL_SECS)


@pytest.mark.parametrize("there", [0, 2])
def test_workers_that_do_not_hear_of_the_end_delay_it_for_some_seconds_only(
    monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    monkeypatch.setattr(containers, "RELEASE_SECS" if there else "JOIN_SECS", 0.1)
    with Driver(None) as driver:
        for index in range(there):
            driver.client(index)
        driver.end()
        assert driver.has_ended(4.0)


@contextmanager
def served(handler: grpc.GenericRpcHandler, path: Path) -> Iterator[None]:
    """Serves a handler on a Unix socket."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=(handler,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


@contextmanager
def storage(path: Path) -> Iterator[str]:
    """What serves a study's storage: it returns what it gets."""

    class Echo(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

    with served(Echo(), path):
        yield str(path)


def stored(address: Address, identity: Identity | None = None, **changes: str) -> tuple[grpc.StatusCode, str] | bytes:
    """The answer of the storage to a process of worker 0, or the error."""
    metadata = {INDEX_KEY: "0", PROCESS_KEY: OLD, **changes}
    with channel(address.control, "worker", identity) as to:
        try:
            answer: bytes = to.unary_unary(METHOD)(
                b"trial", timeout=CALL_SECS, metadata=tuple(metadata.items()), wait_for_ready=True
            )
        except grpc.RpcError as error:
            return error.code(), error.details()
    return answer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELEASE_SECS", "JOIN_SECS"):
        monkeypatch.setattr(containers, name, 0.1)


@pytest.mark.usefixtures("quick")
def test_only_the_present_process_of_a_worker_reaches_the_storage(tmp_path: Path) -> None:
    refused = "the call does not say which worker makes it"
    with storage(tmp_path / "storage") as socket, Driver(None, storage=socket) as driver:
        for changes in ({INDEX_KEY: "-1"}, {INDEX_KEY: ""}, {PROCESS_KEY: ""}, {PROCESS_KEY: "x" * 16}):
            assert stored(driver.address, None, **changes) == (grpc.StatusCode.INVALID_ARGUMENT, refused)
        code, text = stored(driver.address, None, **{INDEX_KEY: "2"})
        assert (code, text) == (grpc.StatusCode.FAILED_PRECONDITION, "worker 2: expected an index from 0 to 1")
        assert stored(driver.address) == b"trial"
        driver.client(0)
        assert stored(driver.address) == (
            grpc.StatusCode.FAILED_PRECONDITION, "worker 0 was replaced by another process",
        )  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_only_certificates_of_workers_reach_the_storage(tmp_path: Path) -> None:
    certificates.make(tmp_path / "tls")
    identities = {role: Identity(tmp_path / "tls" / role) for role in ("worker", "ps", "client", "loader")}
    with storage(tmp_path / "storage") as socket, Driver(None, identities["worker"], socket) as driver:
        assert stored(driver.address, identities.pop("worker")) == b"trial"
        for role, identity in identities.items():
            text = f"a certificate for {role} may not call GetTrial"
            assert stored(driver.address, identity) == (grpc.StatusCode.PERMISSION_DENIED, text)


@contextmanager
def relayed(client: DriverClient, socket: Path) -> Iterator[str]:
    """Serves the storage of the client's driver on a Unix socket, as a worker in a container does."""
    with served(client.relay(), socket):
        yield str(socket)


@pytest.mark.usefixtures("quick")
def test_a_worker_reads_all_trials_of_a_large_study_at_once(tmp_path: Path) -> None:
    optuna = optuna_module()
    trials = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=trials, study_name="large")
    for value in range(1_000):
        study.add_trial(optuna.trial.create_trial(value=float(value), user_attrs={"job": "x" * 6_000}))
    path = str(tmp_path / "storage")
    server = make_server(trials, "unix", cast(int, path), ThreadPoolExecutor(2))
    server.start()
    try:
        with Driver(None, storage=path) as driver, relayed(driver.client(0), tmp_path / "relay") as socket:
            proxy = optuna.storages.GrpcStorageProxy(host="unix", port=socket)
            found = proxy.get_all_trials(proxy.get_study_id_from_name("large"), deepcopy=False)
            proxy.close()
    finally:
        server.stop(0).wait()
    assert [trial.value for trial in found] == list(range(1_000))
