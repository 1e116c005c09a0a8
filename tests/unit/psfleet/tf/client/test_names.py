"""Names of clients' containers: checked, different for different names, and none that a run has."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from psfleet.errors import UsageError
from psfleet.tf import container_name
from psfleet.tf.client.names import NAME, resource_container

TENSORFLOWS = re.compile(r"[A-Za-z0-9.][A-Za-z0-9./-]*")
"""What ContainerInfo::Init accepts."""


@given(st.from_regex(NAME, fullmatch=True), st.from_regex(NAME, fullmatch=True))
def test_different_names_are_different_containers_that_tensorflow_accepts(first: str, second: str) -> None:
    assume(first != second)
    assert resource_container(first) != resource_container(second)
    assert TENSORFLOWS.fullmatch(resource_container(first))


@given(st.from_regex(NAME, fullmatch=True))
def test_a_client_never_has_the_container_of_a_run(name: str) -> None:
    assert resource_container(name).count("/") > container_name("run-1", 1).count("/")


@pytest.mark.parametrize("name", ["", "a b", "_a", "/a", ".a", "ü", "a:b", "a" * 101, 3, None])
def test_other_names_are_refused_in_one_line(name: object) -> None:
    with pytest.raises(UsageError, match=re.escape(f"container is {name!r}, expected up to 100 letters")):
        resource_container(name)  # type: ignore[arg-type]
