"""Measurements of psfleet against the book's way; timings are printed and never decide an exit code."""
