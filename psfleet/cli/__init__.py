"""The `psfleet` command: one module for each group of subcommands."""
