"""The asv suites. Each calls `rocmforge` as a user does; see README.md beside this file."""
