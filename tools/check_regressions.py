#!/usr/bin/env python3
"""The same as `rocmforge bench compare`: judges a commit's results by another's or a baseline."""

import sys

from rocmforge.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
