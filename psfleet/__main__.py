"""`python -m psfleet`: the command line."""

from psfleet.cli.main import main

if __name__ == "__main__":
    main()
