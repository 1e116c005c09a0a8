"""A worker's gradient of given weights, against NumPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.chief_samples import sample_job

import psfleet
from psfleet.control import run_control_pb2 as pb
from psfleet.errors import LostPeerError
from psfleet.layout import Layout, TensorSpec
from worker_service.errands import Errands
from worker_service.frontends.interface import TrainingGraph
from worker_service.own_gradient import OwnGradient, WorkerControlServicer

LAYOUT = Layout.plan([TensorSpec("w", (3,))], [], [TensorSpec("scale", ())], num_ps=2, bucket_bytes=4096)
X = np.random.default_rng(0).normal(size=(10, 8, 3)).astype(np.float32)
"""By the number of the batch."""
VALUES = {"w": np.array([1, -2, 3], np.float32), "scale": np.float32(2)}


class LinearProgram:
    """The mean of `scale * (x w)²`."""

    num_built = 0

    def build(
        self, layout: Layout, parameters: Any, state: Any, frozen: Any, *_: Any, with_gradients: bool = True, rows: Any
    ) -> TrainingGraph:
        """See FrontEnd."""
        del state, rows
        assert with_gradients
        self.num_built += 1
        batch = v1.placeholder(tf.float32, [None, 3])
        at = layout.parameters.offsets[0]
        weights = tf.concat(parameters, 0)[at : at + 3]
        loss = frozen[0] * tf.reduce_mean(tf.square(tf.linalg.matvec(batch, weights)))
        return TrainingGraph((batch,), loss, tuple(tf.gradients(loss, [weights])), (), (), None)


def gradient_of(batches: list[int]) -> tuple[float, np.ndarray]:
    x = np.concatenate(X[batches])
    product = x @ VALUES["w"]
    return float(2 * np.mean(product**2)), 4 * x.T @ product / len(x)


def own_gradient(program: Any, accumulate: int = 1, before_build: Callable[[], object] = lambda: None) -> OwnGradient:
    job = sample_job(train={"steps": 100, "batch_size": 8 // accumulate, "accumulate": accumulate})
    stop = SimpleNamespace(event=threading.Event())
    context: Any = SimpleNamespace(layout=LAYOUT, job=job, index=1, stop=stop)
    batches: Any = SimpleNamespace(
        at=lambda number: (X[number % len(X)],), numbers=SimpleNamespace(next=lambda step: step)
    )
    progress: Any = SimpleNamespace(step=4)
    return OwnGradient(context, program, batches, progress, before_build)


def announced(run: str, **tensors: tuple[list[int], str]) -> Iterator[pb.TensorMessage]:
    """The first message of a stream, with shape and type by name; reading on fails the test."""
    records = [pb.TensorRecord(name=name, shape=shape, dtype=dtype) for name, (shape, dtype) in tensors.items()]
    yield pb.TensorMessage(caller=pb.RunCall(run=run, version=psfleet.__version__), tensors=records, batches=1)
    pytest.fail("the stream was read on, with memory for all that it has announced")


@pytest.mark.parametrize(
    ("run", "tensors", "message"),
    [
        ("run", {"w": ([1 << 20], "float32"), "scale": ([], "float32")}, r"'w' is float32 \[1048576\], expected"),
        ("run", {"w": ([3], "float32"), "scale": ([], "float32"), "x": ([1 << 20], "int8")}, "no tensor 'x'"),
        ("run", {"w": ([3], "float32")}, "'scale' of the model is missing"),
        ("other", {"w": ([1 << 20], "float32")}, "expected a call for run run"),
    ],
)
def test_a_stream_of_other_tensors_is_refused_before_there_is_memory_for_it(
    run: str, tensors: dict[str, tuple[list[int], str]], message: str
) -> None:
    servicer = WorkerControlServicer("run")
    servicer.bind(own_gradient(LinearProgram()), Errands())

    def abort(code: grpc.StatusCode, details: str) -> None:
        raise RuntimeError(f"{code.name}: {details}")

    with pytest.raises(RuntimeError, match=f"FAILED_PRECONDITION: .*{message}"):
        list(
            servicer.OwnGradient(
                announced(run, **tensors), cast("Any", SimpleNamespace(abort=abort, cancel=lambda: None))
            )
        )


@pytest.mark.parametrize(("num_batches", "accumulate"), [(1, 1), (3, 1), (2, 2)])
def test_it_is_the_mean_over_the_batches_of_the_next_steps(num_batches: int, accumulate: int) -> None:
    loss, gradient = own_gradient(LinearProgram(), accumulate).compute(VALUES, num_batches)
    expected_loss, expected = gradient_of(list(range(4, 4 + num_batches)))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(gradient["w"], expected, rtol=1e-5)
    assert gradient["w"].dtype == np.float32


def test_a_thousand_calls_add_no_operation() -> None:
    program = LinearProgram()
    made = own_gradient(program)
    first = made.compute(VALUES, 1)
    assert made._opened is not None
    graph = made._opened[0].graph
    before = len(graph.get_operations())
    for _ in range(999):
        found = made.compute(VALUES, 1)
    assert (program.num_built, len(graph.get_operations())) == (1, before)
    assert found[0] == first[0]


@pytest.mark.parametrize("reason", ["the caller has gone", "a signal"])
def test_it_ends_between_two_batches_when_nobody_waits_for_it(reason: str) -> None:
    """A caller that was killed may have asked for any number; the thread that trains would be busy for as long."""
    made = own_gradient(LinearProgram())
    looks = []

    def is_wanted() -> bool:
        looks.append(1)
        if len(looks) == 3 and reason == "a signal":
            made._context.stop.event.set()
        return len(looks) < 3 or reason == "a signal"

    with pytest.raises(LostPeerError, match="nobody waits for the gradient"):
        made.compute(VALUES, 10**9, is_wanted)
    assert len(looks) == 3


def test_its_step_is_built_when_no_evaluation_uses_the_program() -> None:
    """One that the chief has begun before the hold can still run, on another thread."""
    program, built = LinearProgram(), []
    own_gradient(program, before_build=lambda: built.append(program.num_built)).compute(VALUES, 1)
    assert built == [0]

    def run_ends() -> None:
        raise LostPeerError("the run ends while an evaluation runs")

    with pytest.raises(LostPeerError):
        own_gradient(program, before_build=run_ends).compute(VALUES, 1)
    assert program.num_built == 1
