"""Large messages between processes of one machine lie in memory that both have, and never where one is still in use."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.exchange.connection import Connection
from psfleet.exchange.message_layout import MessageLayout, TensorKind
from psfleet.exchange.messages import NOWHERE
from psfleet.exchange.shared_memory import MIN_BYTES, NUM_BUFFERS, FilledMemory, ReceivedMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has files in memory")

SIZE = 5000
LAYOUT = MessageLayout([TensorKind(np.dtype(np.float32), SIZE)])
SMALL = MessageLayout([TensorKind(np.dtype(np.uint8), MIN_BYTES - 1)])
WAIT_SECS = 30.0


@contextmanager
def both_ends(family: socket.AddressFamily = socket.AF_UNIX) -> Iterator[tuple[Connection, Connection]]:
    if family == socket.AF_UNIX:
        first, second = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            first = socket.create_connection(listener.getsockname())
            second, _ = listener.accept()
    with closing(Connection(first)) as receiver, closing(Connection(second)) as sender:
        for each in (receiver, sender):
            each.set_timeout(WAIT_SECS)
        yield receiver, sender


def shared(layouts: dict[object, MessageLayout]) -> tuple[ReceivedMemory, FilledMemory]:
    with both_ends() as (receiver, sender):
        received = ReceivedMemory(layouts)
        received.share(receiver)
        return received, FilledMemory.received(sender)


def values(value: float) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


def test_a_message_is_what_the_sender_has_put() -> None:
    received, filled = shared({"a": LAYOUT, "b": LAYOUT})
    places = {key: received.free(key) for key in "ab"}
    for key, at in places.items():
        assert filled.put(at, LAYOUT, [values(ord(key))])
    for key, at in places.items():
        (array,) = received.arrived(key, at)
        assert (array == ord(key)).all()


def test_no_message_is_put_where_one_is_in_use() -> None:
    received, filled = shared({"a": LAYOUT})
    kept = []
    for step in range(NUM_BUFFERS):
        at = received.free("a")
        assert filled.put(at, LAYOUT, [values(step)])
        (array,) = received.arrived("a", at)
        kept.append(array[:10])
    del array
    assert received.free("a") == NOWHERE, "all are in use"
    assert not filled.put(NOWHERE, LAYOUT, [values(9)])
    assert [part.tolist() for part in kept] == [[step] * 10 for step in range(NUM_BUFFERS)]
    del kept[1]
    assert filled.put(received.free("a"), LAYOUT, [values(9)])
    assert [part[0] for part in kept] == [0, 2]


def test_a_place_is_named_again_until_a_message_is_there() -> None:
    """The sender need not use it."""
    received, _ = shared({"a": LAYOUT})
    at = received.free("a")
    assert received.free("a") == at
    received.arrived("a", at)
    with pytest.raises(ConnectionError, match="where it may not"):
        received.arrived("a", at)


def test_a_message_that_a_variable_of_tensorflow_shares_stays_as_it_is() -> None:
    received, filled = shared({"a": LAYOUT})

    def arrived(value: np.ndarray) -> np.ndarray:
        at = received.free("a")
        assert filled.put(at, LAYOUT, [values(float(value))])
        return received.arrived("a", at)[0]

    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("kept", [SIZE], initializer=v1.zeros_initializer(), use_resource=True)
        value = v1.placeholder(tf.float32, [])
        array = tf.ensure_shape(v1.py_func(arrived, [value], tf.float32), [SIZE])
        assign, read = variable.assign(array, read_value=False), variable.read_value()[0]
        session.run(v1.global_variables_initializer())
        for step in range(1, 20):
            session.run(assign, {value: step})
            if (at := received.free("a")) != NOWHERE:
                filled.put(at, LAYOUT, [values(-1)])
            assert session.run(read) == step


@pytest.mark.parametrize("layouts", [{}, {"a": SMALL}])
def test_small_messages_have_no_memory(layouts: dict[object, MessageLayout]) -> None:
    received, filled = shared(layouts)
    assert received.free("a") == NOWHERE
    assert not filled.put(0, LAYOUT, [values(1)])


def test_on_a_network_nothing_is_shared_and_nothing_is_sent() -> None:
    with both_ends(socket.AF_INET) as (receiver, sender):
        received = ReceivedMemory({"a": LAYOUT})
        received.share(receiver)
        assert not FilledMemory.received(sender).put(0, LAYOUT, [values(1)])
        assert received.free("a") == NOWHERE
        receiver.send([b"x"])
        assert sender.receive(1) == b"x"


@pytest.mark.parametrize("forbidden", ["memfd_create", "ftruncate"])
def test_a_machine_that_gives_no_memory_has_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forbidden: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, forbidden, refuse)
    received, filled = shared({"a": LAYOUT})
    assert received.free("a") == NOWHERE
    assert not filled.put(0, LAYOUT, [values(1)])
    assert "are not put into shared memory: [Errno 1] not here" in caplog.text


def test_a_python_without_files_in_memory_has_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "MFD_CLOEXEC")
    received, _ = shared({"a": LAYOUT})
    assert received.free("a") == NOWHERE
    assert "Python has no files in it" in caplog.text


def test_a_python_that_was_built_with_an_old_c_library_can_import_the_module() -> None:
    code = """
import fcntl, os
for module in fcntl, os:
    for name in [each for each in vars(module) if "SEAL" in each or "memfd" in each]:
        delattr(module, name)
import psfleet.exchange.shared_memory
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_SECS)


def test_a_process_that_may_have_no_more_files_gets_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    with both_ends() as (receiver, sender):
        received = ReceivedMemory({"a": LAYOUT})
        received.share(receiver)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            filled = FilledMemory.received(sender)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not filled.put(received.free("a"), LAYOUT, [values(1)])
    assert "messages go through the socket" in caplog.text


def test_programs_that_are_started_do_not_inherit_a_file_that_arrives() -> None:
    with both_ends() as (receiver, sender):
        receiver.send_file(0)
        file = sender.receive_file()
        assert file is not None
        assert not os.get_inheritable(file)
        os.close(file)


def test_a_sender_that_cannot_map_the_memory_puts_nothing_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with both_ends() as (receiver, sender):
        received = ReceivedMemory({"a": LAYOUT})
        received.share(receiver)

        def refuse(*_: object) -> mmap.mmap:
            raise OSError(errno.ENOMEM, "too much")

        monkeypatch.setattr(mmap, "mmap", refuse)
        filled = FilledMemory.received(sender)
    assert not filled.put(received.free("a"), LAYOUT, [values(1)])
    assert "are not put into shared memory: [Errno 12] too much" in caplog.text


def test_a_place_outside_of_the_memory_is_refused() -> None:
    _, filled = shared({"a": LAYOUT})
    with pytest.raises(ConnectionError, match="which is not in its memory"):
        filled.put(NUM_BUFFERS * LAYOUT.size - 1, LAYOUT, [values(1)])


def test_a_file_that_can_be_shortened_is_refused() -> None:
    """Its reader would be ended by SIGBUS."""
    with both_ends() as (receiver, sender):
        file = os.memfd_create("not sealed", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, 4 * SIZE)
        receiver.send_file(file)
        os.close(file)
        with pytest.raises(ConnectionError, match="can shorten"):
            FilledMemory.received(sender)


def test_an_end_that_is_closed_is_an_error() -> None:
    with both_ends() as (receiver, sender):
        receiver.close()
        with pytest.raises(ConnectionError):
            FilledMemory.received(sender)


def test_no_file_is_left_open() -> None:
    others = files()
    received, filled = shared({"a": LAYOUT})
    assert filled.put(received.free("a"), LAYOUT, [values(1)])
    assert len(files() - others) == 2, "one of each end's mapping"
    del received, filled
    assert not files() - others


def files() -> set[str]:
    """Open files in memory of this process, by their descriptors."""
    return {each.name for each in Path("/proc/self/fd").iterdir() if "psfleet-exchange" in os.path.realpath(each)}
