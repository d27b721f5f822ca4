"""Which head dims attention on a GPU takes; its kernels are not asked, so that `info` need not."""

MAX_GPU_HEAD_DIM = 256
"""The largest; besides, a head dim is a multiple of 8."""


def wanted_head_dim(head_dim: int) -> str | None:
    """Return what a GPU wants where `head_dim` is not that, else None."""
    if head_dim % 8 == 0 and head_dim <= MAX_GPU_HEAD_DIM:
        return None
    return f"wanted a multiple of 8 up to {MAX_GPU_HEAD_DIM} on a GPU"
