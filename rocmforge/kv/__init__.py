"""The paged KV cache. Holds what the command line names too, which must not wait for numpy."""

PAGE_SIZES = (16, 32, 64)
"""P, tokens in a page: what it may be."""
