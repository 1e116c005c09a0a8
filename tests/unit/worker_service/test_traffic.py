"""The bytes that cross the network in a step of each mode, counted in the graph of a worker."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import tensorflow as tf
from support.programs import exact_graph_program, table_program, tiny_gan_program
from support.rows import first_rows

from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from psfleet.layout import Layout
from psfleet.tf.optimizer_slots import exchanged_slots
from worker_service.frontends import front_end, planned
from worker_service.metrics import Payload
from worker_service.step import StepGraph
from worker_service.towers import divided

SGD = {"name": "sgd", "learning_rate": 0.1}
ADAM = {"name": "adam", "learning_rate": 0.1}


def job_of(update: dict[str, Any], optimizer: dict[str, Any], num_ps: int) -> Job:
    fields = {"name": "sample", "program": "program:build", "fleet": {"ps": num_ps, "workers": 2}}
    return parse_job({**fields, "update": update, "optimizer": optimizer, "train": {"steps": 20, "batch_size": 4}})


def traffic(update: dict[str, Any], optimizer: dict[str, Any] = SGD, num_ps: int = 2) -> tuple[int, int]:
    """Bytes between one worker and all ps for each update, and for each local one; checks the metric, too."""
    job = job_of(update, optimizer, num_ps)
    program = GraphProgram(loss=exact_graph_program.loss, train=exact_graph_program.train)
    front = front_end(program, job, 2, 1)
    layout = Layout.plan(front.parameters, front.state, front.frozen, num_ps, 1 << 20)
    step = StepGraph(front, job, layout, 1, "run", 1)
    found = crossing_bytes(step.steps[0])
    payload = Payload.of(job, layout, 1, exchanged_slots(job, None))
    assert found == pytest.approx(payload.push + payload.pull, rel=0.01)
    return found, 0 if step.local_update is None else crossing_bytes([step.local_update])


def crossing_bytes(fetches: list[tf.Tensor]) -> int:
    """The bytes of all tensors that an operation on another task needs, whose shapes are known."""
    return sum((tensor.shape.num_elements() or 1) * tensor.dtype.size for tensor in crossing_tensors(fetches))


def crossing_tensors(fetches: list[tf.Tensor]) -> list[tf.Tensor]:
    """All tensors that an operation on another task needs; each is sent to a task once."""
    waiting, seen = [fetch.op for fetch in fetches], set()
    crossing: dict[tuple[str, str], tf.Tensor] = {}
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        for tensor in op.inputs:
            task, other = (device.partition("/device:")[0] for device in (op.device, tensor.device))
            if task and other and task != other:
                crossing[tensor.name, task] = tensor
        waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return list(crossing.values())


@pytest.mark.parametrize("local_steps", first_rows([10, 2]))
def test_averaging_moves_the_bytes_of_a_sync_step_once_a_round(local_steps: int) -> None:
    of_step, _ = traffic({})
    of_round, of_local_update = traffic({"mode": "averaging", "local_steps": local_steps})
    assert of_local_update == 0
    assert of_round / local_steps == pytest.approx(of_step * {2: 0.5, 10: 0.1}[local_steps], rel=0.01)
    assert of_step > 2 * 4 * 2700, "the perceptron has 2724 parameters"


@pytest.mark.extended
def test_a_round_also_moves_the_slots_of_the_optimizer() -> None:
    of_step, _ = traffic({}, ADAM)
    of_round, of_local_update = traffic({"mode": "averaging", "local_steps": 10}, ADAM)
    assert of_local_update == 0
    assert of_round == pytest.approx(3 * of_step, rel=0.02)
    of_round, of_local_update = traffic({"mode": "averaging", "local_steps": 10, "average_slots": False}, ADAM)
    assert of_local_update == 0
    assert of_round == pytest.approx(of_step, rel=0.01)


def test_towers_move_what_one_device_moves() -> None:
    """Their gradients are averaged in the worker, and they share what it has pulled."""
    job = job_of({}, SGD, 2)
    program = GraphProgram(loss=exact_graph_program.loss, train=exact_graph_program.train)
    front = front_end(program, job, 2, 1)
    steps = [
        StepGraph(divided(front, 1, 4, devices), job, planned(front, job), 1, "run", 1)
        for devices in ((), ("/device:GPU:0", "/device:GPU:1"))
    ]
    one, two = (crossing_bytes(step.steps[0]) for step in steps)
    assert one == two > 2 * 4 * 2700
    assert {op.device[-5:] for op in steps[1].graph.get_operations() if op.type == "TanhGrad"} == {"GPU:0", "GPU:1"}


def test_ssp_moves_what_async_moves() -> None:
    assert traffic({"mode": "ssp", "bound": 1}) == traffic({"mode": "async"})


def test_a_step_of_several_losses_pushes_the_gradient_of_its_own_loss() -> None:
    """The generator has 80 parameters and the discriminator 21, in 96 and 48 elements of the vector."""
    rules = {"discriminator": ADAM, "generator": SGD}
    train = {"steps": 20, "batch_size": 4, "alternate": ["discriminator", "discriminator", "generator"]}
    job = parse_job({"name": "sample", "program": "program:build", "optimizers": rules, "train": train})
    front = front_end(tiny_gan_program.build(), job, 2, 1)
    layout = planned(front, job)
    step = StepGraph(front, job, layout, 1, "run", 1)
    of_discriminator, of_generator = (crossing_bytes(fetches) for fetches in step.steps)
    assert of_generator - of_discriminator == 4 * (96 - 48)
    payload = Payload.of(job, layout, 1)
    assert (2 * of_discriminator + of_generator) / 3 == pytest.approx(payload.push + payload.pull, rel=0.01)


def test_of_a_table_only_the_ids_and_rows_of_the_batch_move() -> None:
    """The program reads the table twice, and pushes one gradient of it; 4 numbers are the width of a row."""
    num_ps, fields = 2, {"tables": {"user": {"rows": 10**9}}, "train": {"steps": 20, "batch_size": 4}}
    content = {"name": "sample", "program": "program:build", "optimizer": SGD, "fleet": {"ps": num_ps}, **fields}
    job = parse_job(content)
    front = front_end(table_program.build(10**9), job, 2, 1)
    step = StepGraph(front, job, planned(front, job), 1, "run", 1)
    moved = crossing_tensors(step.steps[0])
    of_unknown_size = [(tensor.dtype.name, tensor.shape.as_list()) for tensor in moved if None in tensor.shape]
    ids, rows = ("int64", [None]), ("float32", [None, table_program.WIDTH])
    assert Counter(map(str, of_unknown_size)) == {str(ids): 3 * num_ps, str(rows): 3 * num_ps}
    known = [tensor for tensor in moved if None not in tensor.shape]
    assert max(tensor.shape.num_elements() or 1 for tensor in known) < 100
