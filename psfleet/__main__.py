"""`python -m psfleet`: the command line."""

from psfleet.cli import main

if __name__ == "__main__":
    main()
