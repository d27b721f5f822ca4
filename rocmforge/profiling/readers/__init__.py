"""Readers of what other makers' profilers write."""
