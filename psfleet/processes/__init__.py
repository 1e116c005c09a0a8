"""Starts local processes: forked by a server that has imported TensorFlow once, or each in a new interpreter."""
