"""The profile of a step: samples of perf by role and kind of work."""

from __future__ import annotations

import pytest

from benchmarks import profile
from benchmarks.profile import OTHER, PS, WORKER, Profile, kind_of, kinds_of
from benchmarks.workload import Workload

KERNEL = "[kernel.kallsyms]"
TENSORFLOW = "/venv/site-packages/tensorflow/libtensorflow_cc.so.2"
LIBC = "/usr/lib/libc.so.6"


@pytest.mark.parametrize(
    ("symbol", "library", "kind"),
    [
        ("_copy_to_iter", KERNEL, "socket copies"),
        ("clear_page_erms", KERNEL, "new pages of memory"),
        ("finish_task_switch.isra.0", KERNEL, "thread switches"),
        ("tcp_sendmsg_locked", KERNEL, "TCP/IP and the rest of the kernel"),
        ("__memmove_avx512_unaligned_erms", LIBC, "memory copies"),
        ("_ZN5Eigen8internal13TensorBlockIOIflLi8ELi1EE4CopyERKNS2_3DstE", TENSORFLOW, "memory copies"),
        (
            "_ZN5Eigen8internal14TensorExecutorIKNS1_14TensorAssignOpINS1_9TensorMapI",
            TENSORFLOW,
            "update, sums, checks",
        ),
        ("_ZN4dnnl4impl3cpu3x647jit_uniE", TENSORFLOW, "matrices"),
        ("[unknown]", "[unknown]", "matrices"),
        ("[unknown]", "/tmp/perf-21236.map", "matrices"),
        ("_ZN9grpc_core20GlobalStatsCollectorE", TENSORFLOW, "gRPC"),
        ("_ZN10tensorflow12_GLOBAL__N_113ExecutorStateE", TENSORFLOW, "TensorFlow's executor"),
        ("_int_malloc", LIBC, "malloc, locks, threads"),
        ("_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0", "Python"),
        ("inflate", "/usr/lib/libz.so.1", OTHER),
    ],
)
def test_a_sample_has_the_first_kind_whose_patterns_are_found(symbol: str, library: str, kind: str) -> None:
    assert kind_of(symbol, library) == kind


def test_samples_of_other_processes_are_left_out() -> None:
    lines = [
        f"   41 ffffffff821e8f67 clear_page_erms ({KERNEL})",
        f"  100 7f81ef38bb75 __memmove_avx512_unaligned_erms ({LIBC})",
        "  100 7f81e6e9c4f3 [unknown] ([unknown])",
        f"    0 ffffffff821e8f67 pv_native_safe_halt ({KERNEL})",
        "",
    ]
    found = list(kinds_of(lines, {41: PS, 100: WORKER}))
    assert found == [(PS, "new pages of memory"), (WORKER, "memory copies"), (WORKER, "matrices")]


def test_milliseconds_are_those_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {(PS, "gRPC"): 999, (WORKER, "gRPC"): 1998, (WORKER, "Python"): 999}

    def recorded(workload: Workload, secs: float) -> tuple[dict[tuple[str, str], int], float]:
        # 3 s of steps of 10 ms: 1 s of the ps's time is 1000 / 300 ms of a step.
        assert secs == 3.0
        return {(role, kind): samples.get((role, kind), 0) for role in (PS, WORKER) for kind in profile.NAMES}, 10.0

    monkeypatch.setattr(profile, "record", recorded)
    found = Profile(Workload(8, "sgd", 10), 3.0)
    whole = found.measure()
    assert whole == pytest.approx({"cpu_ms": 40 / 3, "ps_cpu_ms": 10 / 3, "workers_cpu_ms": 10.0})
    assert found.of("gRPC") == pytest.approx({"cpu_ms": 10.0, "ps_cpu_ms": 10 / 3, "workers_cpu_ms": 20 / 3})
