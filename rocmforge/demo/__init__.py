"""The demo model that comes with the package, and a text that it was not trained on.

Card, licence and training log lie beside this file. It knows where files are, no engine.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def demo_model() -> Path:
    """Return the path of the demo model's GGUF file."""
    return _HERE / "demo.gguf"


def held_out_text() -> bytes:
    """Return the held-out text, UTF-8: definitions that were kept out of the training."""
    return (_HERE / "held_out.txt").read_bytes()
