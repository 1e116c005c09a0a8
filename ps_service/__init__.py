"""The parameter server: holds one shard of the model and applies the updates to it."""
