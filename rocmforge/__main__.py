"""`python -m rocmforge`: the command line, as the installed program `rocmforge` runs it.

It knows nothing of its own.
"""

import sys

from rocmforge.cli import main

if __name__ == "__main__":
    sys.exit(main())
