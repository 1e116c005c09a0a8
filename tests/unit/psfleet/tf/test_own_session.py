"""Calls of a ps on its own server are repeated if TensorFlow refused them as duplicates, and only then."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf.own_session import MAX_CALLS, OwnSession, repeat_refused

# Of a session that made 379,000 calls on its own server; four were refused.
REFUSAL = "From /job:boot/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. goo.gle/debugstr"


class Server:
    """Refuses the first calls; the answer of the others is their number."""

    def __init__(self, num_refusals: int, message: str = REFUSAL) -> None:
        self.num_calls = 0
        self._num_refusals = num_refusals
        self._message = message

    def __call__(self, increment: int) -> int:
        self.num_calls += 1
        if self.num_calls <= self._num_refusals:
            raise tf.errors.AbortedError(None, None, self._message)
        return self.num_calls * increment


@pytest.mark.parametrize("num_refusals", [0, 1, 2])
def test_a_refused_call_is_made_again(num_refusals: int) -> None:
    assert repeat_refused(Server(num_refusals))(10) == (num_refusals + 1) * 10


def test_a_call_that_is_always_refused_ends_with_the_refusal() -> None:
    server = Server(num_refusals=100)
    with pytest.raises(tf.errors.AbortedError, match="received twice"):
        repeat_refused(server)(1)
    assert server.num_calls == MAX_CALLS


def test_any_other_abortion_is_not_repeated() -> None:
    server = Server(1, "Worker /job:ps/replica:0/task:0 restarted")
    with pytest.raises(tf.errors.AbortedError, match="restarted"):
        repeat_refused(server)(1)
    assert server.num_calls == 1


def test_a_session_repeats_both_kinds_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def refuse_once(name: str) -> None:
        if name not in refused:
            refused.append(name)
            raise tf.errors.AbortedError(None, None, REFUSAL)

    made = v1.Session.make_callable
    ran = v1.Session.run

    def run(self: v1.Session, *args: object, **kwargs: object) -> object:
        refuse_once("run")
        return ran(self, *args, **kwargs)

    def make_callable(self: v1.Session, *args: object, **kwargs: object) -> object:
        call = made(self, *args, **kwargs)

        def called() -> object:
            refuse_once("callable")
            return call()

        return called

    monkeypatch.setattr(v1.Session, "run", run)
    monkeypatch.setattr(v1.Session, "make_callable", make_callable)
    with tf.Graph().as_default() as graph:
        three = tf.constant(3)
    with OwnSession(graph=graph) as session:
        assert session.run(three) == 3
        assert session.make_callable(three)() == 3
    assert refused == ["run", "callable"]
