"""A worker of `psfleet predict`: predicts its share of the batches of a data set, in this process alone."""
