"""The chief's own gradient: kept for histograms if the job asks for them, its norm for the steps that are recorded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.graph_fleet import STEP_SECS, graph_fleet

from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from psfleet.layout import Layout
from worker_service.frontends import FrontEnd, front_end
from worker_service.step import StepGraph

WORKERS, STEPS, SIZE = 2, 3, 2
CLIP_NORM = 1e-3


def loss(batch: Any) -> tf.Tensor:
    """Its gradients are the means of the two columns of the batch."""
    weights = [tf.compat.v1.get_variable(name, [1]) for name in ("first", "second")]
    return tf.reduce_mean(batch @ tf.stack(weights))


def sections(accumulate: int, asked: bool = True, clip_norm: float | None = CLIP_NORM) -> dict[str, Any]:
    return {
        "fleet": {"workers": WORKERS},
        "optimizer": {"name": "sgd", "learning_rate": 0.5, "clip_norm": clip_norm},
        "train": {"steps": 20, "batch_size": SIZE, "accumulate": accumulate},
        "summaries": {"gradient_histograms": asked},
    }


def front_of(x: np.ndarray, accumulate: int, asked: bool = True) -> tuple[Job, FrontEnd]:
    data = tf.data.Dataset.from_tensor_slices(x.reshape(-1, 2))
    job = parse_job({"name": "sample", "program": "program:build", **sections(accumulate, asked)})
    return job, front_end(GraphProgram(loss=loss, train=lambda shard, shards: data), job, WORKERS, 0)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_chief_has_its_own_gradient_of_the_whole_batch_before_it_was_clipped(accumulate: int) -> None:
    x = np.random.default_rng(5).normal(size=(STEPS, WORKERS, accumulate * SIZE, 2)).astype(np.float32)
    _, front = front_of(x, accumulate)
    with graph_fleet(1, front, front.initial_values(), **sections(accumulate)) as fleet, ExitStack() as stack:
        workers = [stack.enter_context(fleet.worker(index)) for index in range(WORKERS)]
        for step in range(STEPS):
            pushed = [
                worker.threads.submit(worker.session.train, (x[step, index],), step, step)
                for index, worker in enumerate(workers)
            ]
            fleet.advance()
            for each in pushed:
                each.result(STEP_SECS)
            found = [gradient.tolist() for gradient in workers[0].session.gradients()]
            expected = [[mean] for mean in x[step, 0].mean(axis=0)]
            assert found == [pytest.approx(mean, rel=1e-5) for mean in expected], f"step {step}"
            assert np.linalg.norm(np.concatenate(found)) > CLIP_NORM
        assert workers[1].session.gradients() == []


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_norm_of_a_gradient_that_is_not_clipped_is_that_of_the_steps_that_want_it(accumulate: int) -> None:
    x = np.random.default_rng(5).normal(size=(STEPS, accumulate * SIZE, 2)).astype(np.float32)
    of_job = sections(accumulate, asked=False, clip_norm=None) | {"fleet": {"workers": 1}}
    _, front = front_of(x, accumulate)
    with graph_fleet(1, front, front.initial_values(), **of_job) as fleet, fleet.worker(0) as worker:
        for step, is_wanted in enumerate([True, False, True]):
            if step:
                worker.session.measure_norm(is_wanted)
            pushed = worker.threads.submit(worker.session.train, (x[step],), step, step)
            fleet.advance()
            pushed.result(STEP_SECS)
            norm = float(np.linalg.norm(x[step].mean(axis=0)))
            assert worker.session.gradient_norm() == (pytest.approx(norm, rel=1e-5) if is_wanted else None)


@pytest.mark.parametrize(("asked", "index", "kept"), [(True, 0, 2), (True, 1, 0), (False, 0, 0)])
def test_no_other_graph_keeps_a_gradient(asked: bool, index: int, kept: int) -> None:
    job, front = front_of(np.zeros((SIZE, 2), np.float32), 1, asked)
    layout = Layout.plan(front.parameters, front.state, front.frozen, 1, 4096)
    step = StepGraph(front, job, layout, index, "run", 1)
    assert len(step.gradients) == kept
    held = [each for each in step.graph.get_operations() if each.name.startswith("worker/gradient_")]
    names = {each.name.split("/")[1] for each in held} - {"gradient_norm"}
    assert len(names) == kept, names
