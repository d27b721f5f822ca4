"""The program `rocmforge`, and `python -m rocmforge`: the command line, without the wait for it.

Nothing is imported before Ctrl-C is seen to, so that it ends quietly from the first moments on. It
knows nothing of its own.
"""

import sys

INTERRUPTED = 130  # as shells count signals


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        from rocmforge.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
