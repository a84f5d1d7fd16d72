"""The `ninfer` command. Knows flags, streams and exit statuses; the work is in `engine` and `artifact`."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    import sys

    from .app import run_command

    sys.exit(run_command(sys.argv[1:]))
