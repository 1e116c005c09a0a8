"""The `psfleet` command: one module per group of subcommands."""
