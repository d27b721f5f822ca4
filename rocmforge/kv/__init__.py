"""The paged KV cache. Holds what the command line names too, which must not wait for numpy."""

PAGE_SIZES = (16, 32, 64)
"""P, tokens in a page: what it may be."""

KV_DTYPES = ("f16", "f32", "q8_0")
"""Of stored keys and values; q8_0: int8, and one f16 scale for 32 dims of a token."""

Q8_GROUP = 32
"""Dims of a token that share a scale in q8_0."""
