"""CPU time of process trees: whose time counts, and between which times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.cpu_time import CpuTime, at

TICKS = os.sysconf("SC_CLK_TCK")


class Processes:
    """A folder like /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def show(
        self, pid: int, parent: int, user_secs: float, system_secs: float = 0.0, started: int = 1, name: str = "a ) b"
    ) -> None:
        """Writes the state of a process, whose name has a blank and a parenthesis unless another one is given."""
        ticks = f"{round(user_secs * TICKS)} {round(system_secs * TICKS)}"
        (self.folder / str(pid)).mkdir(exist_ok=True)
        stat = f"{pid} ({name}) S {parent} {pid} 0 0 -1 0 0 0 0 0 {ticks} 0 0 20 0 1 0 {started} 0 0"
        (self.folder / str(pid) / "stat").write_text(stat)

    def end(self, pid: int) -> None:
        """Removes a process."""
        (self.folder / str(pid) / "stat").unlink()
        (self.folder / str(pid)).rmdir()


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    found = Processes(tmp_path)
    found.show(10, parent=1, user_secs=1.0)
    found.show(11, parent=10, user_secs=2.0, system_secs=0.5)
    found.show(12, parent=11, user_secs=4.0)
    found.show(20, parent=1, user_secs=100.0)
    return found


def test_the_time_of_all_descendants_counts_and_that_of_strangers_does_not(processes: Processes) -> None:
    cpu = CpuTime(lambda: [10], proc=processes.folder)
    cpu.search()
    cpu.sample(100.0)
    processes.show(10, parent=1, user_secs=1.5)
    processes.show(12, parent=11, user_secs=5.0, system_secs=1.0)
    processes.show(20, parent=1, user_secs=200.0)
    cpu.sample(110.0)
    assert cpu.secs(100.0, 110.0) == pytest.approx(2.5)
    assert cpu.secs(100.0, 105.0) == pytest.approx(1.25)


def test_a_process_that_ends_keeps_its_time_and_another_one_may_get_its_id(processes: Processes) -> None:
    cpu = CpuTime(lambda: [10], proc=processes.folder)
    cpu.search()
    cpu.sample(100.0)
    processes.end(12)
    cpu.sample(110.0)
    processes.show(12, parent=10, user_secs=0.5, started=2)
    cpu.search()
    cpu.sample(120.0)
    assert cpu.secs(100.0, 110.0) == pytest.approx(0.0)
    assert cpu.secs(110.0, 120.0) == pytest.approx(0.5)


def test_of_one_program_only_its_processes_count(processes: Processes) -> None:
    processes.show(13, parent=11, user_secs=1.0, name="stunnel4")
    cpus = {name: CpuTime(lambda: [10], name, processes.folder) for name in ("stunnel4", "a ) b", "stunnel")}
    for cpu in cpus.values():
        cpu.search()
        cpu.sample(100.0)
    processes.show(13, parent=11, user_secs=1.5, name="stunnel4")
    processes.show(12, parent=11, user_secs=5.0)
    for cpu in cpus.values():
        cpu.sample(110.0)
    found = {name: cpu.secs(100.0, 110.0) for name, cpu in cpus.items()}
    assert found == pytest.approx({"stunnel4": 0.5, "a ) b": 1.0, "stunnel": 0.0})


def test_a_time_before_the_first_sample_is_an_error() -> None:
    samples = [(1.0, 10.0), (2.0, 20.0)]
    assert [at(samples, moment) for moment in (1.0, 1.25, 2.0)] == [10.0, 12.5, 20.0]
    for moment in (0.9, 2.1):
        with pytest.raises(ValueError, match="no sample of CPU time"):
            at(samples, moment)


def test_the_time_of_this_process_grows_while_it_computes() -> None:
    cpu = CpuTime(lambda: [os.getpid()])
    cpu.search()
    cpu.sample(1.0)
    before = sum(os.times()[:2])
    while sum(os.times()[:2]) < before + 0.2:
        pass
    cpu.sample(2.0)
    assert cpu.secs(1.0, 2.0) >= 0.1
