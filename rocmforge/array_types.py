"""The arrays that ops take, and the letters of their shapes.

Every array is C-contiguous. Letters, for every shape in the package: T tokens, S sequences,
H query heads, G KV heads, D head dim, R rotated dims, P page size, K columns (inputs), N rows
(outputs), V vocabulary, L layers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
