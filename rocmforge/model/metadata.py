"""Range-checked and total reading of the metadata keys of one architecture.

Every key under the architecture's prefix is honoured, known to be without effect, or refused by
name; none is ignored silently. `config` says what the honoured ones mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rocmforge.errors import ModelError, UnsupportedModelError, brief, shorten
from rocmforge.gguf.reader import GGUFFile

_HONOURED = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_feed_forward_length",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "vocab_size",
    }
)
# Without effect on the logits of the supported architectures: where a file came from, how an
# embedding would be pooled, the epsilon of a LayerNorm that they do not have.
_WITHOUT_EFFECT = frozenset(
    {
        "attention.layer_norm_epsilon",
        "pooling_type",
        "rope.scaling.finetuned",
        "tensor_data_layout",
    }
)
# Features that are not supported, each with the values that switch it off.
_ONLY: Mapping[str, tuple[bool | int | float | str, ...]] = MappingProxyType(
    {
        "attention.causal": (True,),
        "attention.clamp_kqv": (0.0,),
        "attention.max_alibi_bias": (0.0,),
        "attention.scale": (0.0,),
        "attention.temperature_scale": (0.0,),
        "attn_logit_softcapping": (0.0,),
        "embedding_scale": (0.0, 1.0),
        "expert_gating_func": (1,),
        "expert_shared_count": (0,),
        "expert_shared_feed_forward_length": (0,),
        "expert_weights_norm": (False,),
        "expert_weights_scale": (0.0, 1.0),
        "final_logit_softcapping": (0.0,),
        "hidden_activation": ("silu", "swish"),
        "leading_dense_block_count": (0,),
        "logit_scale": (0.0, 1.0),
        "nextn_predict_layers": (0,),
        "residual_scale": (0.0, 1.0),
        "rope.scaling.alpha": (0.0,),
        "rope.scaling.yarn_attn_factor": (1.0,),
        "rope.scaling.yarn_ext_factor": (1.0,),
        "rope.scaling.yarn_log_multiplier": (0.0,),
        "use_parallel_residual": (False,),
    }
)


@dataclass(frozen=True)
class Keys:
    """The keys ``<arch>.…`` of a file, each named below without the prefix.

    Parameters
    ----------
    file
        An open GGUF file.
    arch
        Its architecture, which is the prefix.
    """

    file: GGUFFile
    arch: str

    def error(self, key: str, got: object, wanted: str) -> ModelError:
        """Return the error for a value that no model of the architecture has."""
        return ModelError(f"{self.file.path}: {self.arch}.{key}: got {got}, wanted {wanted}")

    def unsupported(self, key: str, got: object, supported: str) -> UnsupportedModelError:
        """Return the error for a value that stands for something not supported."""
        return UnsupportedModelError(
            f"{self.file.path}: {self.arch}.{shorten(key)} = {brief(got)} is not "
            f"supported; supported: {supported}"
        )

    def has(self, key: str) -> bool:
        """Return whether the file states `key`."""
        return f"{self.arch}.{key}" in self.file.metadata

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer from `low` to `high`, or `default` where the key is missing."""
        if default is not None and not self.has(key):
            return default
        value = self.file.get(f"{self.arch}.{key}", int)
        if not low <= value <= high:
            raise self.error(key, value, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, above: float, high: float, default: float | None = None) -> float:
        """Return a number in (`above`, `high`], or `default` where the key is missing."""
        if default is not None and not self.has(key):
            return default
        value = self.file.get(f"{self.arch}.{key}", float)
        if not above < value <= high:  # NaN fails this, too
            raise self.error(key, value, f"a number above {above:g}, at most {high:g}")
        return value

    def per_layer(
        self, key: str, n_layers: int, high: int, low: int = 1, default: int | None = None
    ) -> int:
        """Return an integer that may stand as an array, one per layer, all equal."""
        if not isinstance(self.file.metadata.get(f"{self.arch}.{key}"), np.ndarray):
            return self.integer(key, low, high, default)
        values = self.file.get(f"{self.arch}.{key}", np.ndarray)
        if values.dtype.kind not in "iu" or len(values) != n_layers:
            raise self.error(key, f"{len(values)} {values.dtype}", f"{n_layers} integers")
        if (values != values[0]).any():
            raise self.unsupported(key, values.tolist(), "the same value in every layer")
        if not low <= values[0] <= high:
            raise self.error(key, values[0], f"integers from {low} to {high}")
        return int(values[0])

    def optional(self, key: str, default: float = 0.0) -> float:
        """Return a scale of 0 or more, finite; `default` where the key is missing or 0."""
        value = self.file.get(f"{self.arch}.{key}", float, default)
        if not 0.0 <= value <= 1e9:
            raise self.error(key, value, "a number from 0 to 1e9")
        return value or default

    def refuse_unsupported(self, also: Collection[str]) -> None:
        """Raise the first error of `unsupported_keys`."""
        for error in self.unsupported_keys(also):
            raise error

    def unsupported_keys(self, also: Collection[str]) -> Iterator[UnsupportedModelError]:
        """Yield an error for each key that is not honoured and has an effect.

        Parameters
        ----------
        also
            Keys that this architecture honours and others do not.
        """
        prefix = f"{self.arch}."
        for full, value in self.file.metadata.items():
            key = full.removeprefix(prefix)
            if key == full or key in _HONOURED or key in _WITHOUT_EFFECT or key in also:
                continue
            if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
                value = value[0].item()
            if key not in _ONLY:
                yield self.unsupported(key, value, "files without this key (unknown effect)")
            elif not isinstance(value, (bool, int, float, str)) or value not in _ONLY[key]:
                yield self.unsupported(key, value, " or ".join(str(v) for v in _ONLY[key]))
