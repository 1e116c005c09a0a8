"""A stop is noticed whatever handlers the training program installs, and its children are not affected."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from psfleet.polling import wait_until
from psfleet.service.process import Stop

LISTEN_SECS = 10.0


def exits(number: int, frame: object) -> None:
    """As programs clean up before they end."""
    sys.exit(0)


@pytest.mark.parametrize("handler", [exits, signal.SIG_IGN, signal.SIG_DFL], ids=["exits", "ignores", "default"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_of_the_program_does_not_hide_a_stop(stop: Stop, number: signal.Signals, handler: Any) -> None:
    signal.signal(number, handler)
    assert signal.getsignal(number) is handler
    os.kill(os.getpid(), number)
    assert stop.event.wait(LISTEN_SECS)
    assert stop.signal_number == number


def test_a_handler_of_the_program_is_called_as_well(stop: Stop) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    assert before is signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.event.wait(LISTEN_SECS)
    wait_until(lambda: seen, LISTEN_SECS, "the program's own handler")
    assert seen == [signal.SIGTERM]


def test_asyncio_and_psfleet_both_notice_a_stop(stop: Stop) -> None:
    async def until_signal() -> int:
        noticed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            asyncio.get_running_loop().add_signal_handler(number, noticed.set_result, number)
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(noticed, LISTEN_SECS)

    assert asyncio.run(until_signal()) == signal.SIGTERM
    assert stop.event.wait(LISTEN_SECS)


def test_ctrl_c_does_not_interrupt_a_program_in_asyncio(stop: Stop) -> None:
    """psfleet ends it when there is nothing to save; KeyboardInterrupt in the program would be a bug in psfleet."""

    async def works() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.to_thread(stop.event.wait, LISTEN_SECS)
        await asyncio.sleep(0)
        return "done"

    assert asyncio.run(works()) == "done"
    assert stop.signal_number == signal.SIGINT


def test_a_stop_is_noticed_after_the_program_has_closed_its_event_loop(stop: Stop) -> None:
    async def installs() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)

    asyncio.run(installs())
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.event.wait(LISTEN_SECS)


@pytest.mark.parametrize(
    ("arguments", "error"), [((signal.SIGTERM, "text"), TypeError), ((signal.SIGTERM, 7), TypeError)]
)
def test_a_wrong_handler_is_refused_as_by_python(stop: Stop, arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="signal handler must be"):
        signal.signal(*arguments)


def test_a_blocking_descriptor_is_refused_as_by_python(stop: Stop) -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(ValueError, match=f"the fd {writer} must be in non-blocking mode"):
            signal.set_wakeup_fd(writer)
    finally:
        os.close(reader)
        os.close(writer)


def test_sigterm_ends_a_forked_process_of_the_program_and_nothing_else(stop: Stop) -> None:
    child = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    child.start()
    try:
        child.terminate()
        child.join(LISTEN_SECS)
        assert child.exitcode == -signal.SIGTERM
    finally:
        child.kill()
        child.join()
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.event.wait(LISTEN_SECS)
    assert stop.signal_number == signal.SIGINT, "the child's signal is not this process's"


def test_a_forked_process_has_the_handlers_of_the_program(stop: Stop) -> None:
    def waits(is_default: Callable[[], bool]) -> None:
        os._exit(0 if is_default() else 1)

    signal.signal(signal.SIGTERM, exits)
    child = multiprocessing.get_context("fork").Process(
        target=waits, args=[lambda: signal.getsignal(signal.SIGTERM) is exits]
    )
    child.start()
    child.join(LISTEN_SECS)
    assert child.exitcode == 0
