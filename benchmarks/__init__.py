"""The asv suites. Each calls `rocmforge` as a user does; see README.md beside this file."""

import os
import sys

from .recording import install

os.environ["ROCMFORGE_TUNING"] = "off"  # what a commit's own constants bring, on every machine
install(sys.argv)
