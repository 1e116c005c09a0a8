"""Members that do not fit a service: which ones are refused, and when the front begins anew with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.one_input_model import METADATA

from psfleet.errors import LOST_PEERS, BadJobError, ChangedProgramError
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.tensors import ModelMetadata, TensorMetadata
from worker_service.front import members
from worker_service.front.members import Members

OTHER = ModelMetadata(inputs=METADATA.inputs, outputs=(TensorMetadata(name="z", datatype="FP32", shape=(-1,)),))


class NoSession:
    """As `OwnSession`, of no server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def make_callable(self, *arguments: Any) -> None:
        pass


class Front:
    """The members of a front, and the errors that would end it.

    Args of the constructor:
        num_models, replicas: Of the ensemble.
    """

    def __init__(self, num_models: int, replicas: int = 1) -> None:
        self.ensemble = Ensemble("net", num_models, 1.0, replicas)
        self.errors: list[BaseException] = []
        self.members = Members("grpc://front:1", self.ensemble, None, self.errors.append)

    def join(self, index: int, metadata: ModelMetadata = METADATA) -> None:
        """Has a member join."""
        link: Any = SimpleNamespace(close=lambda: None, send=lambda number, inputs: None)
        self.members._add(index, link, {"step": 1, "name": f"member-{index}", "address": "a:1"}, metadata)


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "OwnSession", NoSession)


def front(num_models: int, replicas: int = 1, joined: Sequence[int] = ()) -> Front:
    async def make() -> Front:
        found = Front(num_models, replicas)
        for index in joined:
            found.join(index)
        return found

    return asyncio.run(make())


@pytest.mark.parametrize("is_late", [True, False])
def test_a_front_ends_and_begins_anew_if_its_only_member_comes_back_with_other_outputs(is_late: bool) -> None:
    found = front(1, joined=[0])
    if is_late:
        found.ensemble.miss(0)
    found.join(0, OTHER)
    (error,) = found.errors
    assert isinstance(error, ChangedProgramError)
    assert error.exit_code == LOST_PEERS, "it is started again everywhere"
    assert str(error).startswith("member 0: inputs or outputs are ")
    assert found.ensemble.metadata == METADATA


def test_a_replica_with_other_outputs_is_refused_until_the_others_have_ended() -> None:
    found = front(1, replicas=2, joined=[0, 1])
    found.join(0, OTHER)
    assert (found.errors, found.ensemble.num_ready) == ([], 2)
    found.ensemble.miss(1)
    found.join(0, OTHER)
    assert [type(error) for error in found.errors] == [ChangedProgramError]


def test_the_other_models_of_an_ensemble_keep_their_inputs_and_outputs() -> None:
    found = front(2, joined=[0, 1])
    found.ensemble.miss(1)
    found.join(0, OTHER)
    assert (found.errors, found.ensemble.metadata) == ([], METADATA)


def test_a_member_that_does_not_fit_before_all_were_ready_ends_the_service() -> None:
    found = front(2, joined=[0])
    found.join(1, OTHER)
    assert [type(error) for error in found.errors] == [BadJobError]
