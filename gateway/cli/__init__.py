"""The `gateway` command: `main` has its words, the other files what it does."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The console script: whatever happens from here on, nobody at a terminal reads a stack."""
    try:
        from gateway.cli.main import run  # takes half a second, in which Ctrl-C may come

        try:
            run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)  # as shells have it, and Typer
    except BrokenPipeError:  # whoever read our output has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


__all__ = ["main"]
