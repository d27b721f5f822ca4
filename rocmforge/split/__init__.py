"""A model on several devices: stages one after another, or a part of each matrix on each."""

from __future__ import annotations

from typing import Literal, get_args

SplitMode = Literal["layer", "tensor"]
"""How several GPUs share a model: some layers each, or a part of every matrix."""
SPLIT_MODES: tuple[SplitMode, ...] = get_args(SplitMode)
