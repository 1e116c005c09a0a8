"""`python -m psfleet`: the same as the `psfleet` command."""

from psfleet.cli.main import main

if __name__ == "__main__":
    main()
