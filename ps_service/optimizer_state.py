"""Decides whether an optimizer can continue from the slots and scalars of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from ps_service.restore import Restored
from psfleet.checkpoint.parts import ShardContent
from psfleet.service.logs import RunLogger

_logger = logging.getLogger("psfleet.ps")


def of_optimizer(restored: Restored, optimizer: str, run: str) -> ShardContent:
    """What a shard starts from; without slots and scalars, with a warning, if they are those of another optimizer.

    Args:
        optimizer: Name of the job's in checkpoints.
        run: For the log.
    """
    if restored.optimizer == optimizer:
        return restored.content
    RunLogger(_logger, run).warning(
        "optimizer %s starts without state: the checkpoint's optimizer is %s", optimizer, restored.optimizer
    )
    return replace(restored.content, slots={}, scalars={})


def restorable(content: ShardContent, optimizer: str, run: str, names: Iterable[str]) -> ShardContent:
    """The content of a checkpoint; without slots and scalars if they are not the optimizer's.

    Another psfleet, or another option such as `centered`, may keep other slots under the same optimizer's name. To
    restore some of them would mix state with initial values; the optimizer then starts anew, and a warning says so.

    Args:
        content: Of one shard. A checkpoint of step 0 has no slots and scalars.
        optimizer: Its name in checkpoints.
        run: For the log.
        names: Of all slots and scalars that the optimizer has.
    """
    found, expected = {*content.slots, *content.scalars}, set(names)
    if not found or found == expected:
        return content
    RunLogger(_logger, run).warning(
        "optimizer %s starts without state: the checkpoint has %s, expected %s",
        optimizer,
        ", ".join(sorted(found)),
        ", ".join(sorted(expected)) or "none",
    )
    return replace(content, slots={}, scalars={})


def warn_of_missing(restored: Restored, optimizer: str, run: str, slots: Collection[str]) -> None:
    """Warns if an optimizer with slots continues from a checkpoint of steps without any.

    That is a checkpoint of averaging mode with `average_slots: false`.

    Args:
        slots: Names of the optimizer's slots on this ps.
    """
    if not slots or restored.step == 0 or restored.optimizer != optimizer:
        return
    if not restored.content.slots:
        text = "optimizer %s starts without state: the checkpoint of step %d has none"
        RunLogger(_logger, run).warning(text, optimizer, restored.step)
