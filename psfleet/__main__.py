"""Start of the `psfleet` command, also as `python -m psfleet`."""

from __future__ import annotations

import signal


def main() -> None:
    """Runs the command line; Ctrl-C while its modules are imported, for a second, ends it without a traceback."""
    # A shell that runs the command in the background has it ignore SIGINT.
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from psfleet.cli.main import main as run

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
