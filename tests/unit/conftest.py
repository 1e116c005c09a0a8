"""For unit tests: TensorFlow runs graphs as they were built, small heaps, a state folder, and an S3 server."""

from __future__ import annotations

import gc
import secrets
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.s3_server import S3Server, no_fault, s3_server, use

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.service import settings
from psfleet.service.process import STOP_SIGNALS, Stop


@pytest.fixture(autouse=True, scope="session")
def _no_graph_optimizers() -> Iterator[None]:
    """Turns TensorFlow's graph optimizers off: they take half of the time of a graph that runs a few times.

    Fleet tests run with them.
    """
    if "tensorflow" not in sys.modules:
        yield
        return
    import tensorflow as tf

    def open_session(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        unoptimized = tf.compat.v1.ConfigProto()
        unoptimized.CopyFrom(config or unoptimized)
        unoptimized.graph_options.rewrite_options.disable_meta_optimizer = True
        opens(self, target, graph, unoptimized)

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    with pytest.MonkeyPatch.context() as patch:
        opens = tf.compat.v1.Session.__init__
        patch.setattr(tf.compat.v1.Session, "__init__", open_session)
        yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has commands keep their state, such as locks, in a folder of this session instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.STATE, str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_of_other_files() -> None:
    """Exempts what earlier files have left from garbage collection: Keras collects for each model that is built.

    Each graph that TensorFlow or a cache keeps would make these collections slower, up to an eighth of all tests' time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def stop() -> Iterator[Stop]:
    """Of a service process that this process stands for; it receives the signals until the end of the test."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    made = Stop()
    yield made
    made.listener.uninstall()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def running_s3_server() -> Iterator[S3Server]:
    """An S3 server; the client of the tests lasts as long, because making one takes half a second."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(running_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """That server without faults, which clients find by their environment."""
    running_s3_server.requests.clear()
    use(running_s3_server, monkeypatch)
    yield running_s3_server
    running_s3_server.fault = no_fault


@pytest.fixture
def bucket(s3: S3Server) -> StoreFolder:
    """A bucket with nothing in it, of this test alone."""
    return s3.make_bucket(f"bucket-{secrets.token_hex(4)}")
