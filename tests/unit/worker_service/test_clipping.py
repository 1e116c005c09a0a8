"""A worker's gradient, clipped to a global norm: right for every finite gradient."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from worker_service.clipping import clipped

LARGEST = float(np.finfo(np.float32).max)


def clip(gradients: list[list[float]], clip_norm: float | None) -> list[np.ndarray]:
    # As StepGraph does.
    tf.compat.v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        tensors, _ = clipped([tf.constant(gradient, tf.float32) for gradient in gradients], clip_norm)
    with tf.compat.v1.Session(graph=graph) as session:
        found: list[np.ndarray] = session.run(list(tensors))
    return found


@pytest.mark.parametrize("clip_norm", [0.5, 5.0, 100.0, 1e30, None])
@pytest.mark.parametrize(
    "gradients",
    [
        [[3.0, 0.0], [-4.0]],
        [[0.0, 0.0], [0.0]],
        [[1e-30, 0.0], [1e-30]],
        [[1e18, -1e18], [1e18]],
        [[1e20, -1e20], [1e10]],
        [[LARGEST, -LARGEST], [LARGEST]],
    ],
    ids=["usual", "zero", "small", "large", "norm above float32's root", "norm above float32"],
)
def test_a_gradient_is_scaled_to_the_norm_if_it_is_longer(
    gradients: list[list[float]], clip_norm: float | None
) -> None:
    norm = np.linalg.norm(np.concatenate(gradients).astype(np.float64))
    scale = 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
    for found, gradient in zip(clip(gradients, clip_norm), gradients, strict=True):
        np.testing.assert_allclose(found, np.array(gradient) * scale, rtol=1e-6)


def test_a_gradient_that_is_not_finite_stays_so() -> None:
    assert not np.isfinite(clip([[np.inf], [1.0]], 1.0)[0]).any()
    assert not np.isfinite(clip([[np.nan], [1.0]], 1.0)[0]).any()


@pytest.mark.parametrize(("clip_norm", "expected"), [(0.5, 5.0), (100.0, 5.0), (None, None)])
def test_the_norm_is_that_before_clipping(clip_norm: float | None, expected: float | None) -> None:
    tf.compat.v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        _, norm = clipped([tf.constant([3.0, 0.0]), tf.constant([-4.0])], clip_norm)
    with tf.compat.v1.Session(graph=graph) as session:
        assert (None if norm is None else float(session.run(norm))) == expected
