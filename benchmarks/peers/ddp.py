"""One worker of the peer `ddp`: PyTorch's DistributedDataParallel with gloo, an all-reduce of gradients per step.

Runs in the environment `.bench/torch`, without TensorFlow. PyTorch reads the annotations of a communication hook, which
`from __future__ import annotations` would make text.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.digits import data
from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import timed
from benchmarks.workload import LEARNING_RATE, Workload

NUM_PIXELS, NUM_CLASSES, NUM_BATCHES = 784, 10, 10
"""As in benchmarks/mlp/program.py, which imports TensorFlow."""
GATE_SECS = 600.0


def main() -> None:
    """Runs one worker; prints a JSON line when the group is complete and one of `StepTimes` or `Reached`."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers.ddp")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--address", required=True, help="host:port at which rank 0 listens for the others")
    parser.add_argument("--wire", choices=("float32", "bfloat16"), default="float32", help="type of sent gradients")
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    args = parser.parse_args()
    parent = ParentPipe()
    # As psfleet's launcher does: the cores of this machine divided by the workers.
    torch.set_num_threads(max(1, torch.get_num_threads() // args.workers))
    dist.init_process_group(
        "gloo", init_method=f"tcp://{args.address}", rank=args.rank, world_size=args.workers
    )  # fmt: skip
    parent.report(session="open")
    accuracy: Callable[[], float] | None = None
    if args.workload.mnist:
        train_step, accuracy = build_lenet(args.workload, args.rank)
    else:
        train_step = build(args.workload, args.rank, args.wire)
    parent.report(**dataclasses.asdict(timed(train_step, accuracy, args.workload)))
    parent.wait_for_line("the end", GATE_SECS)


def build(workload: Workload, rank: int, wire: str) -> Callable[[int], int]:
    """A function that runs the i-th step and returns the number of steps."""
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Variables(workload) if workload.shapes else mlp(workload.hidden))
    if wire == "bfloat16":
        model.register_comm_hook(None, bfloat16_hook)
    kind = torch.optim.Adam if workload.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=LEARNING_RATE)
    random = np.random.default_rng(rank)
    size = workload.batch_size
    images = torch.from_numpy(random.random((NUM_BATCHES, size, NUM_PIXELS), dtype=np.float32))
    labels = torch.from_numpy(random.integers(NUM_CLASSES, size=(NUM_BATCHES, size)))

    def loss(index: int) -> torch.Tensor:
        output = model(images[index % NUM_BATCHES])
        return output if workload.shapes else nn.functional.cross_entropy(output, labels[index % NUM_BATCHES])

    return training(loss, optimizer)


def training(loss: Callable[[int], torch.Tensor], optimizer: torch.optim.Optimizer) -> Callable[[int], int]:
    """A function as that of `build`, from one that returns the loss of the i-th step."""

    def train_step(index: int) -> int:
        optimizer.zero_grad(set_to_none=True)
        loss(index).backward()
        optimizer.step()
        return index + 1

    return train_step


def build_lenet(workload: Workload, rank: int) -> tuple[Callable[[int], int], Callable[[], float]]:
    """The model of `examples/lenet` on MNIST: a function as that of `build`, and one that returns the accuracy."""
    torch.manual_seed(workload.seed)
    network = lenet()
    # Each rank drops other units.
    torch.manual_seed(workload.seed + 1 + rank)
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=1e-7)
    shard, tests = data.Shard(workload, rank), data.evaluation_batches(workload.mnist)

    def loss(index: int) -> torch.Tensor:
        pixels, labels = tensors(shard.batch(index))
        return nn.functional.cross_entropy(model(pixels), labels)

    def num_right(batch: data.Batch) -> int:
        pixels, labels = tensors(batch)
        return int((network(pixels).argmax(1) == labels).sum())

    def accuracy() -> float:
        # Only rank 0 needs it; the other one waits for its next gradient.
        if rank:
            return 0.0
        network.eval()
        with torch.no_grad():
            found = data.accuracy(tests, num_right)
        network.train()
        return found

    return training(loss, optimizer), accuracy


def tensors(batch: data.Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels float32 [batch, 1, 28, 28] in [0, 1], and labels int64 [batch]."""
    pixels, labels = batch
    return torch.from_numpy(pixels).float().div_(255).unsqueeze(1), torch.from_numpy(labels).long()


def lenet() -> nn.Module:
    """The layers of `examples/lenet`, with initial weights of the same spread."""
    layers = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Dropout(0.5), nn.Linear(500, NUM_CLASSES),
    )  # fmt: skip
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return layers


def bfloat16_hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What PyTorch's `bf16_compress_hook` does, which PyTorch refuses without NCCL: averages gradients in bfloat16."""
    del state
    gradients = bucket.buffer()
    sent = gradients.to(torch.bfloat16).div_(dist.get_world_size())
    reduced = dist.all_reduce(sent, async_op=True).get_future()
    return reduced.then(lambda done: gradients.copy_(done.value()[0]))


def mlp(hidden: int) -> nn.Module:
    """The ReLU MLP 784-hidden-hidden-10."""
    return nn.Sequential(
        nn.Linear(NUM_PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, NUM_CLASSES)
    )


class Variables(nn.Module):
    """Variables of the workload's shapes; the loss waits instead of computing, and each gradient is a constant."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.variables = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in workload.shapes])
        self.wait_secs = workload.wait_ms / 1000

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss of a batch: a float32 scalar."""
        time.sleep(self.wait_secs)
        return batch[0, 0] * torch.stack([each.mean() for each in self.variables]).sum()


if __name__ == "__main__":
    main()
