"""One ps of `benchmarks.checkpoint`: the control plane of a real one, around a shard that only has its content."""

from __future__ import annotations

import sys
from typing import Any

from ps_service.checkpoint_writer import CheckpointWriter
from ps_service.restore import Restored
from ps_service.run_state import Run
from ps_service.servicer import ControlServicer
from ps_service.shard_plan import ShardPlan
from psfleet.addresses import Address
from psfleet.control.server import serving


class StillShard:
    """A shard that makes no updates; see `ps_service.shard.Shard` for its methods and attributes."""

    is_complete = False
    slot_names: tuple[str, ...] = ()
    model_bytes = 0
    last_update = 0.0

    def __init__(self, plan: ShardPlan, restored: Restored, run: Run) -> None:
        self.plan = plan
        self.first_step = self.step = restored.step
        self.final_step = plan.job.train.steps
        self._content = restored.content
        self.writer = CheckpointWriter(
            plan.checkpoints_root,
            plan.run,
            plan.generation,
            plan.shard,
            plan.layout,
            lambda message, exit_code: sys.exit(message),
            run.is_followed,
        )

    def schedule_checkpoint(self, step: int, stop: bool) -> bool:
        """Writes the content at once."""
        self.writer.save(step, lambda: self._content)
        return True

    def counters(self) -> Any:
        """There are none."""
        raise RuntimeError("this shard has no gradients")

    def close(self) -> None:
        """Ends the writer."""
        self.writer.close()


def main() -> None:
    """Serves at the address in the first argument until stdin ends."""
    plane: Any = None
    servicer = ControlServicer("", "", "", plane)
    builder: Any = servicer._builder
    builder.build = lambda run, plan, restored: run.install(StillShard(plan, restored, run))
    with serving(Address.parse(sys.argv[1]), servicer):
        sys.stdin.read()


if __name__ == "__main__":
    main()
