"""The `gateway` command: `main` has its commands, the other files what they do."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The console script: whatever fails from here on, a person never reads a stack trace."""
    try:
        from gateway.cli.main import run  # takes half a second, in which Ctrl-C may come

        try:
            run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)  # as shells have it, and Typer
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
