"""The job of a driver's fleet, which is valid for whatever job describes its containers."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_platform import job

from psfleet.driver.on_platform import containers_job

SGD = {"name": "sgd", "learning_rate": 0.1}


@pytest.mark.parametrize(
    "sections",
    [
        {"fleet": {"ps": 2, "workers": 4}, "update": {"mode": "averaging", "local_steps": 10}},
        {
            "optimizer": None,
            "optimizers": {"a": SGD, "b": SGD},
            "train": {"steps": 20, "batch_size": 2, "alternate": ["a", "b"]},
        },
        {
            "optimizer": {**SGD, "schedule": {"kind": "plateau", "metric": "loss", "direction": "minimize"}},
            "evaluate": {"every_steps": 10},
        },
        {"fleet": {"workers": 2}, "input": {"loaders": 1}},
        {"fleet": {"workers": 5}, "device": {"visible_gpus": {"worker": [[0], [1], [2], [3], [4]]}}},
        {"checkpoint": {"store": "s3://bucket/run"}, "tls": True},
    ],
)
def test_it_has_a_driver_that_can_do_without_its_workers(sections: dict[str, Any]) -> None:
    described = job(**{"container": {"worker_image": "mine:1"}, **sections})
    found = containers_job(described.model_dump(mode="json"), "small-predict", 3)
    assert (found.name, found.fleet.processes, found.least_workers, found.most_loaders) == ("small-predict", 4, 1, 0)
    assert (found.container, found.tls, found.deadlines) == (described.container, described.tls, described.deadlines)
    assert found.checkpoint.store is None
