"""How many threads each process of a fleet gets where the job leaves it open."""

from __future__ import annotations

from psfleet.job.job import Job


def share_cores(job: Job, num_cores: float, num_processes: int) -> Job:
    """The job with threads for processes that compute at the same time on the same cores.

    TensorFlow gives each process threads for all cores. Three processes on two cores then pass work to each other's
    threads more than they compute: one thread each made a step of 118 thousand parameters 7 % shorter.

    Args:
        job: What it says about threads stays.
        num_cores: That there are.
        num_processes: Workers and spares on them; a ps computes while they wait for it.
    """
    num_threads = max(1, int(num_cores / num_processes))
    device = job.device
    inter, intra = device.inter_op_threads, device.intra_op_threads
    threads = {
        "inter_op_threads": num_threads if inter is None else inter,
        "intra_op_threads": num_threads if intra is None else intra,
    }
    return job.model_copy(update={"device": device.model_copy(update=threads)})
