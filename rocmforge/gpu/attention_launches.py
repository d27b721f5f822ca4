"""From records of rotations, of the cache and of attention to launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocmforge.gpu.launch import Launch
from rocmforge.gpu.ops.attention import attention
from rocmforge.gpu.ops.attention_prompt import attention_prompt
from rocmforge.gpu.ops.kv_append import kv_append
from rocmforge.gpu.ops.rope import rope
from rocmforge.gpu.ops.rope_attention import rope_attention
from rocmforge.gpu.ops.rope_kv_append import rope_kv_append
from rocmforge.gpu.pass_memory import PassMemory
from rocmforge.plan.fused_records import RopeAttention, RopeKvAppend
from rocmforge.plan.operands import Rotation
from rocmforge.plan.records import Attention, KvAppend, Rope


@dataclass(frozen=True)
class AttentionLaunches:
    """Makes the launches of attention in one pass."""

    memory: PassMemory

    def rope(self, op: Rope) -> Launch:
        """Rotate the heads of a tensor."""
        return rope(
            self.memory.kernels,
            x=self.memory.f32(op.x),
            tokens=self.memory.shape.tokens,
            heads=op.x.columns // op.head_dim,
            head_dim=op.head_dim,
            **self._rotation(op.rotation),
        )

    def rope_kv_append(self, op: RopeKvAppend) -> Launch:
        """Rotate queries and keys; store keys and values to the cache."""
        return rope_kv_append(
            self.memory.kernels,
            q=self.memory.f32(op.q),
            heads=op.q.columns // op.head_dim,
            **self._turned(op),
            **self._slots(op),
        )

    def rope_attention(self, op: RopeAttention, out: Any) -> Launch:
        """Do that for one new token of each sequence, and attend."""
        return rope_attention(self.memory.kernels, **self._turned(op), **self._attended(op, out))

    def kv_append(self, op: KvAppend) -> Launch:
        """Store keys and values to the cache."""
        return kv_append(
            self.memory.kernels, k=self.memory.f32(op.k), v=self.memory.f32(op.v), **self._slots(op)
        )

    def attention(self, op: Attention, out: Any) -> Launch:
        """Attend to what the cache has."""
        if self.memory.shape.single:
            return attention(self.memory.kernels, **self._attended(op, out))
        return attention_prompt(
            self.memory.kernels,
            starts=self.memory.batch.starts,
            tokens=self.memory.shape.tokens,
            max_queries=self.memory.shape.longest,
            deep=self.memory.shape.deep,
            **self._queried(op, out),
        )

    def _turned(self, op: RopeKvAppend | RopeAttention) -> dict[str, Any]:
        return {
            "k": self.memory.f32(op.k),
            "v": self.memory.f32(op.v),
            "q_norm": self.memory.optional(op.q_norm),
            "k_norm": self.memory.optional(op.k_norm),
            "eps": op.eps,
            **self._rotation(op.rotation),
        }

    def _queried(self, op: Attention | RopeAttention, out: Any) -> dict[str, Any]:
        batch = self.memory.batch
        return {
            **self._pages(op.layer, op.kv_heads, op.head_dim),
            "q": self.memory.f32(op.q),
            "page_table": batch.window_table if self._windowed(op) else batch.page_table,
            "max_pages": batch.max_pages,
            "lengths": batch.lengths,
            "scratch": self.memory.scratch(op.label),
            "arrivals": self.memory.lowering.arrivals(),
            "out": out,
            "sequences": self.memory.shape.sequences,
            "heads": op.heads,
            "scale": op.scale,
            "window": op.window,
            "softcap": op.softcap,
            "sinks": self.memory.optional(op.sinks),
        }

    def _attended(self, op: Attention | RopeAttention, out: Any) -> dict[str, Any]:
        """What attention of one token a sequence takes."""
        return {
            **self._queried(op, out),
            "splits": self.memory.lowering.splits(
                op.heads, op.kv_heads, op.head_dim, self.memory.shape.sequences
            ),
        }

    def _rotation(self, rotation: Rotation) -> dict[str, Any]:
        cos, sin = self.memory.lowering.table(rotation)
        return {
            "cos": cos,
            "sin": sin,
            "positions": self.memory.batch.positions,
            "rotated": rotation.rotated,
            "interleaved": rotation.interleaved,
        }

    def _slots(self, op: KvAppend | RopeKvAppend) -> dict[str, Any]:
        batch = self.memory.batch
        return {
            **self._pages(op.layer, op.k.columns // op.head_dim, op.head_dim),
            "pages": batch.window_pages if self._windowed(op) else batch.pages,
            "offsets": batch.offsets,
            "tokens": self.memory.shape.tokens,
        }

    def _windowed(self, op: KvAppend | RopeKvAppend | Attention | RopeAttention) -> bool:
        return op.layer in self.memory.lowering.cache.windowed

    def _pages(self, layer: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
        cache = self.memory.lowering.cache
        (k, v), (k_scales, v_scales) = cache.pages(layer), cache.scales(layer)
        return {
            "k_pages": k,
            "v_pages": v,
            "k_scales": k_scales,
            "v_scales": v_scales,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "page_size": cache.page_size,
            "kv": cache.dtype,
        }
