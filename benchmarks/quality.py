"""What a format costs in quality: perplexity and divergence of the demo model, format by format.

The model's matrices are quantized anew to each format; embedding rows stay as in the file. The
reference is that file, Q8_0: its F16 weights, which tools/compare_formats.py takes, do not come
with the package. Tokens are held-out text that the model was not trained on. Nothing is timed.
"""

from __future__ import annotations

import functools

from rocmforge.demo import demo_model, held_out_text
from rocmforge.engine import Engine
from rocmforge.gguf.formats import FORMATS
from rocmforge.perplexity import Divergence, divergence
from rocmforge.text.tokenizer import Tokenizer

from .devices import DEVICES, device_name

FORMAT_NAMES = tuple(FORMATS)
WINDOW = 512
TOKENS = 6144  # of the held-out text: the standard error of the perplexity is about 3 %


@functools.cache
def quality(fmt: str, device: str) -> Divergence:
    """Score the held-out text with matrices of one format against the file's own."""
    name = device_name(device)
    tokenizer = Tokenizer.from_gguf(demo_model())
    ids = tokenizer.encode(held_out_text().decode(), add_bos=False)[:TOKENS]
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    with (
        Engine.from_gguf(demo_model(), name, weight_format=fmt) as engine,
        Engine.from_gguf(demo_model(), name) as own,
    ):
        return divergence([engine], own, ids, bos, min(WINDOW, engine.ctx))[0]


class Quality:
    """Lower is better for both."""

    params = (FORMAT_NAMES, DEVICES)
    param_names = ("format", "device")
    timeout = 300

    def setup(self, fmt: str, device: str) -> None:
        quality(fmt, device)

    def track_perplexity(self, fmt: str, device: str) -> float:
        """Perplexity of held-out text."""
        return quality(fmt, device).perplexity.value

    def track_kl_nats(self, fmt: str, device: str) -> float:
        """Mean KL divergence from the predictions of the file's own weights."""
        return quality(fmt, device).kl

    track_perplexity.unit = "perplexity"  # type: ignore[attr-defined]
    track_kl_nats.unit = "nats"  # type: ignore[attr-defined]
