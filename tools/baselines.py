#!/usr/bin/env python3
"""The same as `rocmforge bench baseline`: lists, saves, refreshes, compares, imports baselines."""

import sys

from rocmforge.bench.cli import main

if __name__ == "__main__":
    sys.exit(main(["baseline", *sys.argv[1:]]))
