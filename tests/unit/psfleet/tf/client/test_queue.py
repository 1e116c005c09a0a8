"""Queues that clients share: elements of all kinds, timeouts that lose nothing, closing, and operations in graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import BadJobError, DeadlineError, QueueClosedError, UsageError
from psfleet.tf.client import Fleet, Queue

SECS = 20.0
"""Far more than anything here takes."""
SOON_SECS = 0.2
"""A timeout that expires."""


def pairs(fleet: Fleet, container: str, capacity: int = 10) -> Queue:
    """A queue of (x [2] float32, label [] int64)."""
    with fleet.container(container):
        return fleet.queue("pairs", dtypes=[tf.float32, tf.int64], shapes=[[2], []], capacity=capacity)


def numbers(fleet: Fleet, container: str, **options: object) -> Queue:
    """A queue of scalars."""
    with fleet.container(container):
        return fleet.queue("numbers", [tf.int64], **({"shapes": [[]]} | options))  # type: ignore[arg-type]


def test_clients_exchange_tuples_one_by_one_and_many_at_once(fleet: Fleet, other: Fleet, name: str) -> None:
    queue, same = pairs(fleet, name), pairs(other, name)
    queue.enqueue(([1.0, 2.0], 3))
    queue.enqueue_many((np.zeros([2, 2]), [4, 5]))
    assert same.size() == 3
    x, label = same.dequeue()
    assert (x.tolist(), label) == ([1.0, 2.0], 3)
    xs, labels = same.dequeue_many(2)
    assert (xs.shape, labels.tolist()) == ((2, 2), [4, 5])


def test_a_container_ends_with_its_block_and_may_be_in_another_one(fleet: Fleet, name: str) -> None:
    with fleet.container(name):
        with fleet.container(f"{name}/inner"):
            inner = numbers(fleet, f"{name}/innermost")
        outer = fleet.queue("numbers", [tf.int32])
    assert (inner.container, outer.container) == (f"{name}/innermost", name)
    assert fleet._container == ""


def test_queues_of_one_name_in_two_containers_are_two(fleet: Fleet, name: str) -> None:
    first, second = numbers(fleet, name), numbers(fleet, f"{name}/2")
    first.enqueue(1)
    assert (first.size(), second.size()) == (1, 0)


def test_a_queue_lies_where_its_name_or_the_caller_says(fleet: Fleet, name: str) -> None:
    assert {numbers(fleet, f"{name}/{index}").device for index in range(16)} == {
        fleet.device("ps", 0),
        fleet.device("ps", 1),
    }
    assert numbers(fleet, name, device=fleet.device("worker", 0)).device == "/job:worker/task:0"
    with pytest.raises(UsageError, match="fleet lab has no worker 1"):
        numbers(fleet, name, device="/job:worker/task:1")


def test_a_shuffle_queue_keeps_a_minimum_until_it_is_closed(fleet: Fleet, name: str) -> None:
    queue = numbers(fleet, name, kind="shuffle", capacity=10, min_after_dequeue=2)
    queue.enqueue_many(range(4))
    taken = [int(queue.dequeue()), int(queue.dequeue())]
    with pytest.raises(DeadlineError):
        queue.dequeue(SOON_SECS)
    queue.close()
    assert sorted([*taken, *queue.dequeue_up_to(5)]) == [0, 1, 2, 3]


def test_a_padding_queue_pads_a_batch_with_zeros(fleet: Fleet, name: str) -> None:
    with fleet.container(name):
        queue = fleet.queue("texts", [tf.int64, tf.string], shapes=[[None], [None]], kind="padding")
    queue.enqueue(([1, 2, 3], ["a"]))
    queue.enqueue(([4], ["b", "c"]))
    ids, words = queue.dequeue_many(2)
    assert ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert words.tolist() == [[b"a", b""], [b"b", b"c"]]


def test_a_priority_queue_gives_the_lowest_first(fleet: Fleet, name: str) -> None:
    queue = numbers(fleet, name, kind="priority")
    for priority, value in ((3, 30), (1, 10), (2, 20)):
        queue.enqueue((priority, value))
    priorities, values = queue.dequeue_many(3)
    assert (priorities.tolist(), values.tolist()) == ([1, 2, 3], [10, 20, 30])


def test_a_timeout_loses_nothing_that_was_taken(fleet: Fleet, name: str) -> None:
    """TensorFlow's own `dequeue_many` drops what it has taken: issue 13."""
    queue = numbers(fleet, name)
    queue.enqueue_many([1, 2, 3])
    with pytest.raises(DeadlineError, match=r"5 elements of queue 'numbers' .*; last seen: 3, which the next call"):
        queue.dequeue_many(5, SOON_SECS)
    queue.enqueue(4)
    assert queue.dequeue() == 1
    assert queue.dequeue_many(3).tolist() == [2, 3, 4]


def test_elements_of_different_shapes_are_no_batch_and_stay(fleet: Fleet, name: str) -> None:
    with fleet.container(name):
        queue = fleet.queue("any", [tf.int64], shapes=None)
    queue.enqueue([1, 2])
    queue.enqueue([3])
    for _ in range(2):
        with pytest.raises(UsageError, match="elements of different shapes are no batch, expected `dequeue`"):
            queue.dequeue_many(2)
    assert [queue.dequeue(SECS).tolist(), queue.dequeue(SECS).tolist()] == [[1, 2], [3]]


def test_full_and_empty_queues_time_out_and_remain_usable(fleet: Fleet, name: str) -> None:
    queue = numbers(fleet, name, capacity=1)
    with pytest.raises(DeadlineError, match=r"gave up after 0.2 s waiting for an element of queue 'numbers' in contai"):
        queue.dequeue(SOON_SECS)
    queue.enqueue(1)
    with pytest.raises(DeadlineError, match="waiting for room in queue 'numbers'"):
        queue.enqueue(2, SOON_SECS)
    assert (queue.dequeue(), queue.size()) == (1, 0)


def test_a_closed_queue_gives_what_is_left_and_takes_nothing(fleet: Fleet, other: Fleet, name: str) -> None:
    queue, same = numbers(fleet, name), numbers(other, name)
    queue.enqueue_many([1, 2, 3])
    queue.close()
    queue.close()
    with pytest.raises(QueueClosedError, match=r"queue 'numbers' in container .* is closed$"):
        same.enqueue(4)
    with pytest.raises(QueueClosedError, match="is closed and has no element left"):
        same.dequeue_many(4)
    assert same.dequeue_up_to(4).tolist() == [1, 2, 3]
    for call in (same.dequeue, lambda: same.dequeue_up_to(1)):
        with pytest.raises(QueueClosedError, match="is closed and has no element left"):
            call()


@pytest.mark.parametrize("cancels", [False, True])
def test_closing_lets_a_pending_enqueue_finish_unless_it_is_cancelled(
    fleet: Fleet, other: Fleet, name: str, cancels: bool
) -> None:
    queue, same = numbers(fleet, name, capacity=1), numbers(other, name, capacity=1)
    queue.enqueue(1)
    with ThreadPoolExecutor(2) as threads:
        pending = threads.submit(queue.enqueue, 2, SECS)
        # There is no way to see the pending call: it has arrived once this one, after it, has timed out.
        with pytest.raises(DeadlineError):
            queue.enqueue(3, SOON_SECS)
        closed = threads.submit(same.close, cancels)
        if cancels:
            with pytest.raises(QueueClosedError):
                pending.result(SECS)
        assert same.dequeue() == 1
        closed.result(SECS)
    assert same.size() == (0 if cancels else 1)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"shapes": [[3]]}, "component shapes"),
        ({"capacity": 7}, "capacity 1000"),
        ({"kind": "priority"}, "Expected FIFOQueue"),
    ],
)
def test_a_queue_of_the_same_name_with_other_properties_is_refused_and_unchanged(
    fleet: Fleet, other: Fleet, name: str, options: dict[str, object], what: str
) -> None:
    queue = numbers(fleet, name)
    queue.enqueue(1)
    with pytest.raises(BadJobError, match=rf"^queue 'numbers' in container .* has other properties: .*{what}"):
        numbers(other, name, **options)
    assert (queue.size(), queue.dequeue()) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "lifo"}, "kind is 'lifo', expected one of fifo, shuffle, padding, priority"),
        ({"kind": "padding", "shapes": None}, "shapes is None, expected shapes with kind 'padding'"),
        ({"min_after_dequeue": 2}, "min_after_dequeue is 2, expected 0 with kind 'fifo'"),
        ({"kind": "shuffle", "capacity": 2, "min_after_dequeue": 2}, "capacity is 2 and min_after_dequeue 2"),
        ({"shapes": [[], []]}, "1 dtype and 2 shapes, expected one of each"),
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": "7"}, "capacity is '7'"),
        ({"shapes": [[-1]]}, r"shapes \[\[-1\]\], expected lists"),
        ({"shapes": [[None]]}, r"shapes \[\[None\]\], expected sizes of all dimensions with kind 'fifo'"),
        ({"shapes": [[None]], "kind": "priority"}, "expected sizes of all dimensions with kind 'priority'"),
    ],
)
def test_a_queue_that_tensorflow_does_not_have_is_refused(
    fleet: Fleet, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        numbers(fleet, name, **options)


def test_values_that_are_no_element_are_refused_in_one_line(fleet: Fleet, name: str) -> None:
    queue = pairs(fleet, name)
    for values, message in (
        ([1.0, 2.0, 3.0], "3 values, expected 2 components"),
        (([1.0], 1), r"^queue 'pairs': component 0 has shape \[1\], expected float32 \[2\]$"),
        (([1.0, 2.0], "a"), r"component 1 is 'a', expected int64 \[\]$"),
        (([1.0, 2.0], 1.5), r"component 1 is float64 \[\], expected int64 \[\]$"),
        (([1.0, 2.0], np.array(2**63, np.uint64)), r"component 1 has 9223372036854775808, expected int64 \[\]$"),
        (([1.0, [2.0]], 1), r"component 0 is \[1\.0, \[2\.0\]\], expected float32 \[2\]$"),
    ):
        with pytest.raises(UsageError, match=message):
            queue.enqueue(values)
    with pytest.raises(UsageError, match=r"components of shapes \[\(2, 2\), \(1,\)\], expected one first dimension"):
        queue.enqueue_many((np.zeros([2, 2]), [1]))
    with pytest.raises(UsageError, match=r"component 0 of the elements has shape \[2\], expected float32 \[any, 2\]$"):
        queue.enqueue_many((np.zeros([2]), [1, 2]))
    with pytest.raises(UsageError, match=r"component 1 of the elements has shape \[\], expected int64 \[any\]$"):
        queue.enqueue_many((np.zeros([2, 2]), 1))
    assert queue.size() == 0


def test_what_a_type_cannot_hold_is_refused(fleet: Fleet, name: str) -> None:
    with fleet.container(name):
        texts, small = fleet.queue("texts", [tf.string], [[]]), fleet.queue("small", [tf.int32], [[]])
    for values in (["a", None], np.array(["a", float("nan")], object), [1, 2]):
        with pytest.raises(UsageError, match=r"^queue 'texts': component 0 of the elements has (None|nan|1), expected"):
            texts.enqueue_many(values)
    for value in (2**40, np.array(2**40), -(2**31) - 1):
        with pytest.raises(UsageError, match=rf"^queue 'small': component 0 (has|is) {value}, expected int32 \[\]$"):
            small.enqueue(value)
    with pytest.raises(UsageError, match=r"component 0 has 1\.5, expected int32"):
        small.enqueue(np.array(1.5, object))
    for take in (texts.dequeue, lambda secs: texts.dequeue_many(2, secs)):
        with pytest.raises(UsageError, match="timeout_secs is nan, expected a number of seconds"):
            take(float("nan"))
    texts.enqueue_many(["a", b"\xff"])
    small.enqueue(np.int64(5))
    assert [texts.dequeue(float("inf")), texts.dequeue(), small.dequeue()] == [b"a", b"\xff", 5]


def test_whole_numbers_of_any_type_are_elements_if_the_queue_can_hold_them(fleet: Fleet, name: str) -> None:
    with fleet.container(name):
        bytes_, large = fleet.queue("bytes", [tf.uint8], [[]]), fleet.queue("large", [tf.uint64], [[]])
    bytes_.enqueue_many([1, 255])
    large.enqueue(np.array(2**63, object))
    assert [bytes_.dequeue(), bytes_.dequeue(), large.dequeue()] == [1, 255, 2**63]
    for queue in (bytes_, large):
        with pytest.raises(UsageError, match=r"component 0 has -1, expected uint"):
            queue.enqueue(np.int64(-1))


def test_a_timeout_that_expires_at_once_ends_the_call(fleet: Fleet, name: str) -> None:
    queue = numbers(fleet, name)
    for _ in range(10):
        with pytest.raises(DeadlineError):
            queue.dequeue(0.0)


def test_a_queue_is_part_of_graphs_and_serves_queue_runners(fleet: Fleet, name: str) -> None:
    queue = numbers(fleet, name, capacity=4)
    with pytest.raises(UsageError, match="op is used without a graph"):
        _ = queue.op
    with tf.Graph().as_default() as graph, tf.device(fleet.device("worker", 0)):
        assert queue.op is queue.op
        assert queue.op.queue_ref.device.startswith(queue.device)
        counter = v1.get_variable("counter", initializer=np.int64(0))
        enqueue = queue.op.enqueue(counter.assign_add(1))
        runner = v1.train.QueueRunner(queue.op, [enqueue])
    coordinator = tf.train.Coordinator()
    with fleet.session(graph) as session:
        session.run(counter.initializer)
        threads = runner.create_threads(session, coordinator, daemon=True, start=True)
        assert [int(queue.dequeue(SECS)) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=SECS)


def test_a_queue_after_the_reset_of_its_container_is_new_and_empty(fleet: Fleet, name: str) -> None:
    queue = numbers(fleet, name)
    queue.enqueue(1)
    queue.close()
    fleet.reset(name)
    again = numbers(fleet, name)
    again.enqueue(2)
    assert (queue.size(), queue.dequeue()) == (1, 2)
