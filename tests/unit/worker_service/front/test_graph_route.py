"""The steps that a front of an in-graph service makes before its session is used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import tensorflow as tf
from support.one_input_model import METADATA

from psfleet.addresses import Address
from psfleet.inference.ensemble import Ensemble
from worker_service.front.graph_route import GraphRoute, _Session


class Steps:
    """A session whose steps are noted; the third one fails if `fails`."""

    def __init__(self, fails: bool) -> None:
        self.made: list[tuple[str, ...]] = []
        self.fed: set[tuple[int, ...]] = set()
        self._fails = fails

    def run(self, puts: Sequence[str], feeds: Mapping[str, Any], options: object) -> None:
        self.made.append(tuple(puts))
        self.fed.add((int(feeds["number"]), *np.shape(feeds["x"])))
        if self._fails and len(self.made) == 3:
            raise tf.errors.UnavailableError(None, None, "a member is lost")


def rehearsed(members: int, fails: bool = False) -> Steps:
    found = Steps(fails)
    puts = {index: f"put {index}" for index in range(members)}
    opened = _Session(cast(Any, found), {}, cast(Any, "number"), cast(Any, ["x"]), cast(Any, puts))

    async def rehearse() -> None:
        route = GraphRoute("grpc://front:1", Address("front", 1), Ensemble("net", members, 1.0), 1.0)
        route._rehearse(opened, METADATA)

    asyncio.run(rehearse())
    return found


def test_each_step_that_the_loss_of_a_member_leads_to_is_made_once_without_rows() -> None:
    steps = rehearsed(3)
    zero, one, two = ("put 0", "put 1", "put 2")
    expected = {(zero, one, two), (zero,), (one,), (two,), (zero, one), (zero, two), (one, two)}
    assert (set(steps.made), len(steps.made)) == (expected, len(expected))
    assert steps.fed == {(0, 0, 2)}
    assert rehearsed(1).made == [(zero,)]


def test_a_session_is_used_although_a_member_is_lost_meanwhile() -> None:
    assert len(rehearsed(3, fails=True).made) == 3
