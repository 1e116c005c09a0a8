"""Common to the drivers of studies and of predictions: their workers, as processes here or in containers."""
