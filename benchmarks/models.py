"""The models that benchmarks run: generated ones, the demo model, and the user's own."""

from __future__ import annotations

from pathlib import Path

from rocmforge import env
from rocmforge.demo import demo_model
from rocmforge.model.synthetic import cached_model

GENERATED = {
    "0.5B-Q4_K_M": ("0.5B", "Q4_K_M"),
    "1.1B-Q4_K_M": ("1.1B", "Q4_K_M"),
    "tiny-Q4_K_M": ("tiny", "Q4_K_M"),
}
"""Models that the suite makes for itself: name → preset and mix. `tiny` is for the tests."""

USER_MODEL = env.test_model()
DEMO = "demo-Q8_0"  # the trained model that comes with the package
MODELS = tuple(
    dict.fromkeys(["0.5B-Q4_K_M", "1.1B-Q4_K_M", DEMO, *([USER_MODEL.stem] if USER_MODEL else [])])
)
"""What `inference` runs; the user's own model is one more value, named after its file."""


def model_path(name: str) -> Path:
    """Return a model's file, making it at first use; NotImplementedError where it is not there."""
    if USER_MODEL is not None and name == USER_MODEL.stem:
        if not USER_MODEL.is_file():
            raise NotImplementedError(f"{env.test_model_name()}: {USER_MODEL} is not a file")
        return USER_MODEL
    if name == DEMO:
        return demo_model()
    preset, mix = GENERATED[name]
    return cached_model(preset, mix)
