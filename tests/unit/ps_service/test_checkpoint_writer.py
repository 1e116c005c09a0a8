"""A ps never saves a tensor that is not finite: it says which one, and ends the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_samples import sample_layout

from ps_service.checkpoint_writer import CheckpointWriter
from psfleet.checkpoint.parts import ShardContent

LAYOUT = sample_layout(num_ps=1)
STEP = 7


def finite_content() -> ShardContent:
    """What the only ps of the layout holds; frozen tensors are not finite, as constants of a program may be."""
    size = LAYOUT.parameters.size
    return ShardContent(
        parameters=np.ones(size, np.float32),
        slots={"m": np.zeros(size, np.float32), "v": np.ones(size, np.float32)},
        scalars={"beta1_power": np.float32(0.5)},
        state=LAYOUT.state.pack(
            {spec.name: np.full(spec.shape, 1, spec.dtype) for spec in LAYOUT.state.specs},
        ),
        frozen=LAYOUT.frozen.pack({spec.name: np.full(spec.shape, np.inf) for spec in LAYOUT.frozen.specs}),
    )


def with_value(vector: np.ndarray, position: int, value: float) -> np.ndarray:
    changed = vector.copy()
    changed[position] = value
    return changed


def save(folder: Path, content: ShardContent) -> tuple[str, list[str]]:
    """The error of the part, and what the writer reported."""
    reported: list[str] = []
    writer = CheckpointWriter(folder, "run", 1, 0, LAYOUT, reported.append)
    writer.save(STEP, content)
    writer.close()
    [part] = writer.parts()
    assert (part.record is None) == bool(part.error)
    return part.error, reported


def position_of(name: str) -> int:
    """The last element of a parameter."""
    flat = LAYOUT.parameters
    [at] = [start + spec.size - 1 for spec, start in zip(flat.specs, flat.offsets, strict=True) if spec.name == name]
    return at


def test_a_finite_part_is_written_whatever_is_in_the_gaps_and_constants(tmp_path: Path) -> None:
    content = finite_content()
    gap = position_of("dense/kernel") + 1
    assert save(tmp_path, replace(content, parameters=with_value(content.parameters, gap, np.nan))) == ("", [])
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "expected",
    [
        "parameter out/kernel",
        "optimizer slot v of dense/bias",
        "optimizer scalar beta1_power",
        "state norm/moving_mean",
    ],
)
def test_a_tensor_that_is_not_finite_is_named_and_nothing_is_written(
    tmp_path: Path, expected: str, value: float
) -> None:
    content = finite_content()
    if expected.startswith("parameter"):
        content.parameters = with_value(content.parameters, position_of("out/kernel"), value)
    elif expected.startswith("optimizer slot"):
        content.slots["v"] = with_value(content.slots["v"], position_of("dense/bias"), value)
    elif expected.startswith("optimizer scalar"):
        content.scalars["beta1_power"] = np.float32(value)
    else:
        named = LAYOUT.state.unpack(content.state)
        named["norm/moving_mean"][-1] = value
        content.state = LAYOUT.state.pack(named)
    message = f"{expected} is NaN or infinite at step {STEP}, expected finite numbers"
    assert save(tmp_path, content) == (message, [message])
    assert list(tmp_path.iterdir()) == []
