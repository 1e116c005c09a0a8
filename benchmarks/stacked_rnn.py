"""Times and draws a step of `examples/stacked_rnn` on one and on two parts, without a ps; each task has one core.

One task with two cores would compute both layers at the same time itself, in two threads.

`python -m benchmarks.stacked_rnn --picture docs/parts.svg`
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.job.job import load_job
from psfleet.job.program import load_program
from psfleet.job.sections import Device
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tf.parts import building
from psfleet.tf.server import boot, session_config
from worker_service.data_ports import blocked
from worker_service.frontends import FrontEnd, front_end, planned

JOB = Path(__file__).resolve().parents[1] / "examples" / "stacked_rnn" / "job.yaml"
ONE_THREAD = Device(intra_op_threads=1, inter_op_threads=2)
"""For an operation; a second thread answers requests for tensors, as in workers of replicas with parts."""
START_SECS = 60
WARM_UP = 3
WIDTH, ROW, LEFT, TOP = 960, 70, 70, 40
LEAST_MICROS = 20
"""Shorter operations are not drawn."""
COLOURS = {"forward": "#2b6cb0", "backward": "#dd8833", "other": "#a0aec0"}


@dataclass(frozen=True)
class Span:
    """An operation on a part: its kind, and from when until when, in microseconds."""

    part: int
    kind: str
    start: int
    end: int


class Contender:
    """A session that computes loss and gradients of a batch, on as many tasks as it has addresses."""

    def __init__(self, front: FrontEnd, job: Any, tasks: Sequence[Address], batch: Sequence[np.ndarray]) -> None:
        devices = [f"/job:worker/task:{index}" for index in range(len(tasks))]
        layout = planned(front, job)
        with tf.Graph().as_default() as graph, tf.device(devices[0]):
            vector = v1.get_variable("parameters", [layout.parameters.size], use_resource=True, trainable=False)
            with building(len(tasks), devices):
                state, frozen = (
                    [tf.zeros(spec.shape, spec.dtype) for spec in flat.specs] for flat in (layout.state, layout.frozen)
                )
                training = front.build(layout, [vector.read_value()], state, frozen)
            # As in a step, all gradients come to part 0. TensorFlow would not compute what no value depends on.
            self._step = training.loss, tf.stack([tf.reduce_sum(gradient) for gradient in training.gradients])
            start = vector.initializer
        config = session_config(ONE_THREAD)
        cluster = tf.train.ClusterSpec({"worker": [task.data for task in tasks]})
        config.cluster_def.CopyFrom(cluster.as_cluster_def())
        config.experimental.share_session_state_in_clusterspec_propagation = True
        self._session = v1.Session(f"grpc://{tasks[0].data}", graph=graph, config=config)
        self._feeds = dict(zip(training.feeds, batch, strict=True))
        self._session.run(start)

    def step_secs(self) -> float:
        """The time of one step."""
        began = time.perf_counter()
        self._session.run(self._step, self._feeds)
        return time.perf_counter() - began

    def spans(self) -> list[Span]:
        """The operations of one step."""
        options, metadata = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), v1.RunMetadata()
        self._session.run(self._step, self._feeds, options, metadata)
        found = []
        for device in metadata.step_stats.dev_stats:
            place = re.search(r"/job:worker/.*task:(\d+)/", device.device)
            for node in device.node_stats if place else ():
                end = node.all_start_micros + node.op_end_rel_micros
                if place and node.op_end_rel_micros >= LEAST_MICROS and not is_transfer(node.timeline_label):
                    found.append(Span(int(place[1]), kind_of(node.node_name), node.all_start_micros, end))
        return sorted(found, key=lambda span: span.start)


def is_transfer(label: str) -> bool:
    """Whether an operation waits for or sends a tensor."""
    return "_Recv" in label or "_Send" in label or "RecvTensor" in label


def kind_of(name: str) -> str:
    """Whether an operation is of a layer's forward or backward pass."""
    if not re.search(r"(first|second|out)_\d+/", name):
        return "other"
    return "backward" if "gradients/" in name else "forward"


def busy_micros(spans: Sequence[Span]) -> int:
    """The time in which at least one of the operations ran."""
    total, until = 0, 0
    for span in spans:
        total += max(0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total


def picture(spans: Sequence[Span], title: str) -> str:
    """An SVG with a row for each part."""
    begin, end = min(span.start for span in spans), max(span.end for span in spans)
    scale = (WIDTH - LEFT - 10) / (end - begin)
    lines = [f'<text x="{LEFT}" y="20" font-size="15">{title}</text>']
    for part in sorted({span.part for span in spans}):
        own = [span for span in spans if span.part == part]
        y, share = TOP + part * ROW, busy_micros(own) / (end - begin)
        lines.append(f'<text x="5" y="{y + 22}">part {part}</text><text x="5" y="{y + 40}">busy {share:.0%}</text>')
        for span in own:
            width = max(0.5, (span.end - span.start) * scale)
            colour = COLOURS[span.kind]
            x = LEFT + (span.start - begin) * scale
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 20}" fill="{colour}"/>')
    bottom = TOP + ROW * (1 + max(span.part for span in spans))
    legend = "blue: forward pass of the layers; orange: backward pass; grey: other operations"
    lines.append(f'<text x="{LEFT}" y="{bottom}">{(end - begin) / 1000:.0f} ms. {legend}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 15}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="13">', '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>\n"])


@contextmanager
def part_process(address: Address, core: int) -> Iterator[None]:
    """A process with a server at an address, on one core."""
    command = [sys.executable, "-m", "benchmarks.stacked_rnn", "--serve", address.data, "--core", str(core)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            wait_until(
                lambda: blocked([("part 1", address)]), START_SECS, "part 1", done=lambda problem: not problem
            )  # fmt: skip
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()


def cores() -> list[int]:
    """Two of the cores that this process may use (Linux), one for each part."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        sys.exit(f"{len(usable)} core, expected 2: one for each part")
    return usable[:2]


def main() -> None:
    """Prints the medians of interleaved steps; writes the picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", metavar="HOST:PORT", help="only be part 1")
    parser.add_argument("--core", type=int, help="with --serve, the only core")
    parser.add_argument("--picture", type=Path, help="SVG file of a step in two parts")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="changes the example's job"
    )
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    own_core, other_core = (options.core, options.core) if options.serve else cores()
    # Threads that start after this run on the same core.
    os.sched_setaffinity(0, {own_core})
    if options.serve:
        boot(Address.parse(options.serve), ONE_THREAD)
        sys.stdin.read()
        return
    job = load_job(JOB, options.overrides)
    program = load_program(job, JOB.parent)
    front = front_end(program, job, 1, 0)
    random = np.random.default_rng(1)
    size = job.train.batch_size
    batch = [random.random((size, 8, 8), np.float32), random.integers(0, 10, size).astype(np.int32)]
    own, other = free_addresses(2)
    boot(own, ONE_THREAD)
    with part_process(other, other_core):
        contenders = [Contender(front, job, tasks, batch) for tasks in ([own], [own, other])]
        secs: list[list[float]] = [[], []]
        for _ in range(WARM_UP + options.steps):
            for each, times in zip(contenders, secs, strict=True):
                times.append(each.step_secs())
        one, two = (statistics.median(times[WARM_UP:]) * 1000 for times in secs)
        print(
            f"median of {options.steps} steps: 1 part {one:.1f} ms, 2 parts {two:.1f} ms, {one / two:.2f} times as fast"
        )
        if options.picture:
            # The third shortest of nine: other processes disturb some.
            traces = sorted((contenders[1].spans() for _ in range(9)), key=lambda spans: spans[-1].end - spans[0].start)
            options.picture.write_text(picture(traces[2], "One step of examples/stacked_rnn on two parts"))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
