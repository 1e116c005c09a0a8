"""The shapes of ResNet-50's 161 trainable variables (He et al., 2015, table 1, with batch normalization)."""

from __future__ import annotations

from collections.abc import Iterator

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Blocks, and channels of their first two convolutions, of each stage."""
EXPANSION = 4
NUM_CLASSES = 1000


def shapes() -> tuple[tuple[int, ...], ...]:
    """Of 53 convolutions with scale and offset of their normalizations, and of the last layer: 25,557,032 elements."""
    return (*_convolutions(), (512 * EXPANSION, NUM_CLASSES), (NUM_CLASSES,))


def _convolutions() -> Iterator[tuple[int, ...]]:
    yield from _convolution(7, 3, 64)
    inputs = 64
    for blocks, channels in STAGES:
        outputs = channels * EXPANSION
        for block in range(blocks):
            yield from _convolution(1, inputs, channels)
            yield from _convolution(3, channels, channels)
            yield from _convolution(1, channels, outputs)
            if block == 0:
                yield from _convolution(1, inputs, outputs)
            inputs = outputs


def _convolution(size: int, inputs: int, outputs: int) -> Iterator[tuple[int, ...]]:
    yield from ((size, size, inputs, outputs), (outputs,), (outputs,))
