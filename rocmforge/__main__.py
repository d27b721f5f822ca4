"""The program `rocmforge`, and `python -m rocmforge`: loads the command line, and runs it.

Nothing else is imported before Ctrl-C is handled, so that it ends quietly from the first moment on.
"""

import sys
import warnings

INTERRUPTED = 130  # as shells count signals


def _say(message: Warning | str, *_: object, **__: object) -> None:
    print(f"rocmforge: warning: {message}", file=sys.stderr)


def main() -> int:
    """Run the command line; return the exit code."""
    warnings.showwarning = _say
    try:
        from rocmforge.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
