"""What `rocmforge info` does: describe a GGUF file, or what runs here.

Like commands.py: results go to standard output, cli.py handles errors. It loads no engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rocmforge.info import ModelInfo, read_info, supported
from rocmforge.quantities import human_count, human_size
from rocmforge.terminal import print_json, print_table, printable


def info(args: argparse.Namespace) -> int:
    """Describe a file, also one that cannot be run; or what can be."""
    if args.supported:
        return _print_supported(args.json)
    found = read_info(args.model)
    if args.json:
        print_json(found.as_json())
        return 0
    for name, value in _facts(found):
        print(f"{name:<16}{printable(value)}")
    if found.formats:
        print()
        rows = [
            (
                s.format,
                str(s.tensors),
                human_count(s.parameters),
                "unknown" if s.nbytes is None else human_size(s.nbytes),
            )
            for s in found.formats
        ]
        print_table(("format", "tensors", "parameters", "size"), rows)
    if found.contexts and found.formats:
        print()
        sizes = [
            (str(c.tokens), human_size(c.kv_bytes), human_size(c.total_bytes))
            for c in found.contexts
        ]
        print_table(("context", "KV cache (f16)", "weights + KV"), sizes)
    return 0


def _facts(found: ModelInfo) -> Iterator[tuple[str, str]]:
    parts = f" in {found.file_parts} parts" if found.file_parts > 1 else ""
    size = f"{human_size(found.file_bytes)}{parts}, GGUF {found.gguf_version}"
    yield "file", f"{found.path} ({size})"
    yield "name", found.name or "not stated"
    yield "architecture", found.architecture or "not stated"
    runs = f"on CPUs alone: {found.cpu_only}" if found.cpu_only else "yes"
    yield "runs here", "no" if found.problems else runs
    for problem in found.problems:
        yield "", f"- {problem}"
    if found.parameters:
        yield "parameters", f"{human_count(found.parameters)} in {found.tensors} tensors"
        bits = found.bits_per_weight
        yield "bits per weight", "unknown" if bits is None else f"{bits:.2f}"
    if found.config is not None:
        c = found.config
        heads = f"{c.n_heads} heads and {c.n_kv_heads} KV heads of {c.head_dim}"
        yield "shape", f"{c.n_layers} layers, width {c.d_model}, feed-forward {c.d_ff}, {heads}"
        if c.experts is not None:
            yield "experts", f"{c.experts.count} a layer, {c.experts.used} of them for each token"
            if c.experts.shared:
                yield "shared expert", f"{c.experts.shared} wide, for every token"
        yield "trained context", f"{c.ctx_train} tokens"
        if c.window is not None:
            every = c.window.global_every
            layers = f"all layers but one of every {every}" if every else "all layers"
            yield "window", f"attention to the last {c.window.size} tokens in {layers}"
        yield "rope scaling", _rope_scaling(found)
        yield "KV per token", f"{human_size(found.kv_bytes_per_token or 0)} (f16)"
    elif found.stated:
        yield "stated", ", ".join(f"{value} {name}" for name, value in found.stated.items())
    kind = found.tokenizer or "of no stated kind"
    used = found.pre_tokenizer if kind == "gpt2" else None  # SentencePiece has none
    pre = f", pre-tokenizer {used}" if used else ""
    yield "vocabulary", f"{found.vocab_size} tokens, {kind}{pre}" if found.vocab_size else "none"
    yield "chat template", "yes" if found.chat_template else "no"


def _print_supported(as_json: bool) -> int:
    found = supported()
    if as_json:
        print_json(found)
        return 0
    for name in ("architectures", "formats", "tokenizers"):
        rows = [tuple(str(value) for value in row.values()) for row in found[name]]
        print_table([key.replace("_", " ") for key in found[name][0]], rows)
        print()
    names = ", ".join(row["pre_tokenizer"] for row in found["pre_tokenizers"])
    print(f"pre-tokenizers of byte-level BPE: {names}")
    return 0


def _rope_scaling(found: ModelInfo) -> str:
    if found.config is None:
        return "unknown"
    rope = found.config.rope
    kind = rope.scaling if rope.scaling == "none" else f"{rope.scaling} × {rope.factor:g}"
    if rope.scaling == "yarn":
        kind += f" from {rope.original_ctx} tokens"
    return f"{kind}, with frequency factors" if found.rope_factors else kind
