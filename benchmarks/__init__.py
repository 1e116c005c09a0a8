"""Compares psfleet with the stock recipe of TensorFlow 1; timings are printed and never decide an exit code."""
