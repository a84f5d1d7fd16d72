"""The `ninfer` command. Knows flags, streams and exit statuses; the work is in `engine` and `artifact`."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    import os
    import sys

    # BLAS reads this when NumPy is imported. The matrices of the CPU backend are small: more threads gain nothing on an
    # idle machine and spin against each other on a busy one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    try:
        from .app import run_command

        sys.exit(run_command(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
