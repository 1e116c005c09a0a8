"""Starts processes: forked by a server that has imported TensorFlow once, or each on its own."""
