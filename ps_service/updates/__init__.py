"""Applies gradients to a shard: one module for each mode of the job file."""

from ps_service.updates.asynchronous import AsyncUpdates
from ps_service.updates.averaging import AveragingUpdates
from ps_service.updates.interface import Updates
from ps_service.updates.ssp import SspUpdates
from ps_service.updates.sync import SyncUpdates

__all__ = ["AsyncUpdates", "AveragingUpdates", "SspUpdates", "SyncUpdates", "Updates"]
