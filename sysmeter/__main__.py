"""The console script, and ``python -m sysmeter``."""

from __future__ import annotations

import signal
import sys


def entry() -> None:
    """Run the command line; every failure ends in :func:`sysmeter.cli.main.main` as words and an exit code."""
    # A Ctrl-C while the command line is still being imported just ends the process, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sysmeter.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
