"""The asv suites. Each calls `rocmforge` as a user does; see README.md beside this file."""

import sys

from .recording import install

install(sys.argv)
