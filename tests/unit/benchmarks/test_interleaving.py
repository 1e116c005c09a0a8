"""Contenders in turn: the order of runs, contenders that fail, and peers without an environment."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from benchmarks import interleaving
from benchmarks.children import ChildError
from benchmarks.interleaving import Contender, Plan, measure, run
from benchmarks.results import Group, Result


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the handlers of the signals that a benchmark ends at."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


class Runs:
    """Contenders that record their runs; one of them fails at some run."""

    def __init__(self, failing: str = "", at: int = 0) -> None:
        self.names: list[str] = []
        self._failing, self._at = failing, at

    def contender(self, name: str, environment: str | None = None) -> Contender:
        """One that counts its runs."""
        return Contender(name, partial(self._run, name), environment)

    def _run(self, name: str) -> Mapping[str, float]:
        self.names.append(name)
        if name == self._failing and self.names.count(name) == self._at:
            raise ChildError(f"{name} ended with exit code 1\nits last lines")
        return {"step_ms": float(len(self.names))}


def test_each_round_runs_each_contender_once_and_every_other_in_the_opposite_order() -> None:
    runs = Runs()
    plan = Plan(Group("A"), [runs.contender("one"), runs.contender("two")])
    assert measure([plan], 2) == []
    assert runs.names == ["one", "two", "two", "one"]
    assert plan.group.rounds == {
        "one": [{"step_ms": 1.0}, {"step_ms": 4.0}],
        "two": [{"step_ms": 2.0}, {"step_ms": 3.0}],
    }


def test_a_contender_that_fails_is_left_out_and_the_others_are_measured() -> None:
    runs = Runs(failing="one", at=2)
    plan = Plan(Group("A"), [runs.contender("one"), runs.contender("two")])
    assert measure([plan], 3) == ["one, A, from round 2 on: one ended with exit code 1"]
    assert runs.names == ["one", "two", "two", "one", "two"]


def test_the_exit_code_says_whether_a_contender_failed(tmp_path: Path) -> None:
    plans = [Plan(Group("A"), [Runs(failing="one", at=1).contender("one"), Runs().contender("two")])]
    assert run("sync_step", "Steps", "Text.", plans, 1, tmp_path) == 1
    assert run("sync_step", "Steps", "Text.", [Plan(Group("A"), [Runs().contender("two")])], 1, tmp_path) == 0


def test_a_peer_without_an_environment_is_skipped_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        interleaving, "why_missing", lambda environment: f"no {environment}; make bench-peers creates it"
    )
    runs = Runs()
    plans = [Plan(Group("A"), [runs.contender("ray", "ray"), runs.contender("stock")])]
    assert run("sync_step", "Steps", "Text.", plans, 1, tmp_path) == 0
    assert runs.names == ["stock"]
    assert "not measured: ray: no ray; make bench-peers creates it\n" in capsys.readouterr().out
    found = Result.read(tmp_path / "results", "sync_step")
    assert found is not None
    assert found.skipped == ["ray: no ray; make bench-peers creates it"]
