"""Tasks run at once on threads that are used again, and end with their session."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import pytest

from ps_service.answer_threads import AnswerThreads
from psfleet.polling import wait_until

WAIT_SECS = 30.0
NUM_TASKS = 5


@pytest.fixture
def threads() -> AnswerThreads:
    return AnswerThreads()


def met(barrier: threading.Barrier, ran_on: list[threading.Thread]) -> Callable[[], None]:
    """A task that ends once as many others run."""

    def task() -> None:
        ran_on.append(threading.current_thread())
        barrier.wait(WAIT_SECS)

    return task


def await_idle(threads: AnswerThreads, number: int) -> None:
    wait_until(lambda: threads._num_idle == number, WAIT_SECS, f"{number} idle threads")


def test_all_tasks_run_at_once_and_later_ones_on_the_same_threads(threads: AnswerThreads) -> None:
    ran_on: list[threading.Thread] = []
    for _ in range(20):
        barrier = threading.Barrier(NUM_TASKS + 1)
        assert all(threads.run(met(barrier, ran_on)) for _ in range(NUM_TASKS))
        barrier.wait(WAIT_SECS)
        await_idle(threads, NUM_TASKS)
    assert len(ran_on) == 20 * NUM_TASKS
    assert len(set(ran_on)) == NUM_TASKS
    threads.close()


def test_an_idle_thread_keeps_nothing_of_its_tasks(threads: AnswerThreads) -> None:
    """A task has the memory of a push."""
    kept = []
    for _ in range(3):
        barrier = threading.Barrier(2)
        task = met(barrier, [])
        kept.append(weakref.ref(task))
        assert threads.run(task)
        del task
        barrier.wait(WAIT_SECS)
        await_idle(threads, 1)
        assert [each() for each in kept] == [None] * len(kept)
    threads.close()


def test_idle_and_busy_threads_end_with_their_session(threads: AnswerThreads) -> None:
    ran_on: list[threading.Thread] = []
    first, second = threading.Barrier(2), threading.Barrier(2)
    assert threads.run(met(first, ran_on))
    assert threads.run(met(second, ran_on))
    first.wait(WAIT_SECS)
    await_idle(threads, 1)
    threads.close()
    second.wait(WAIT_SECS)
    for each in ran_on:
        each.join(WAIT_SECS)
        assert not each.is_alive()


def test_a_task_is_refused_without_a_thread_for_it(threads: AnswerThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran_on: list[threading.Thread] = []
    barrier = threading.Barrier(2)
    assert threads.run(met(barrier, ran_on))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert not threads.run(lambda: ran_on.append(threading.current_thread()))
    barrier.wait(WAIT_SECS)
    await_idle(threads, 1)
    assert len(ran_on) == 1, "a task that is refused does not run"
    assert threads.run(met(threading.Barrier(1), ran_on)), "by the thread that is there"
    await_idle(threads, 1)
    assert len(set(ran_on)) == 1
    threads.close()
