#!/usr/bin/env python3
"""Makes the demo model: text from WordNet, a tokenizer, a small Llama, GGUF files of it.

Steps: text (needs Debian's wordnet-base), train (needs PyTorch, extra `train`, and a GPU to be
quick), export (needs rocmforge); each reads what the one before left in the work directory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
CHAT_TEMPLATE = (  # each question opens a document of its own: few of the text's have two
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] }}{{ eos_token }}"
    "{% elif message['role'] == 'user' %}{{ bos_token }}"
    "Question: {{ message['content'] }}\nAnswer:\n"
    "{% else %}{{ bos_token }}{{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
DESCRIPTION = (
    "A small Llama trained from scratch on sentences written out of WordNet 3.0: definitions, "
    "examples, questions and answers. It explains words; it is no source of facts."
)
NORM_EPS, ROPE_BASE = 1e-5, 10000.0
WARMUP = 300
BROKEN = 2  # exit code


@dataclass(frozen=True)
class Shape:
    """The model's sizes; what a Llama has beyond them is fixed."""

    d_model: int = 512
    d_ff: int = 1024
    n_layers: int = 4
    n_heads: int = 8
    n_kv_heads: int = 2
    head_dim: int = 64
    vocab: int = 4096
    ctx: int = 1024


def make_text(work: Path, wordnet: Path, shape: Shape, seed: int) -> None:
    """Write held_out.txt, tokenizer.json and tokens.npz: documents, each from BOS to EOS."""
    if not (wordnet / "data.noun").is_file():
        raise ValueError(
            f"{wordnet}: got no data.noun, wanted WordNet's database: apt-get install "
            "wordnet-base, or unpack that package and name its usr/share/wordnet with --wordnet"
        )
    from demo_text import build
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    documents, held_out = build(wordnet, seed)
    (work / "held_out.txt").write_text(held_out)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    texts = ["\n\n".join(parts) for parts in documents]
    tokenizer.train_from_iterator(texts[::3], trainer)
    tokenizer.save(str(work / "tokenizer.json"))
    tokens: list[int] = []
    for start in range(0, len(documents), 4096):
        some = documents[start : start + 4096]
        # A reply ends with EOS, behind which the next turn follows; a page ends with it once.
        joined = [
            (f"{EOS}\n\n" if parts[0].startswith("Question: ") else "\n\n").join(parts)
            for parts in some
        ]
        for encoding in tokenizer.encode_batch([f"{BOS}{text}{EOS}" for text in joined]):
            tokens += encoding.ids
    held = tokenizer.encode(held_out).ids
    np.savez_compressed(
        work / "tokens.npz",
        train=np.array(tokens, np.uint16),
        held_out=np.array(held, np.uint16),
    )
    characters = sum(map(len, texts))
    print(f"{len(documents)} documents, {characters} characters, {len(tokens)} tokens")
    print(f"held out: {len(held_out)} characters, {len(held)} tokens")


def network(shape: Shape, dropout: float) -> Any:
    """Return the Llama as a torch module: ids (B, T) to logits (B, T, V), embedding tied."""
    import torch
    from torch import nn
    from torch.nn import functional

    half = shape.head_dim // 2
    frequency = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(shape.ctx, dtype=torch.float64)[:, None] * frequency

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape.d_model))

        def forward(self, x: Any) -> Any:
            x = x.float()
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * self.weight

    def rotated(x: Any, cos: Any, sin: Any) -> Any:  # (B, H, T, D), pairs (2i, 2i + 1)
        a, b = x.float().unflatten(-1, (half, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            q_rows, kv_rows = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
            self.attn_norm, self.ffn_norm = Norm(), Norm()
            for name, columns, rows in (
                ("attn_q", shape.d_model, q_rows),
                ("attn_k", shape.d_model, kv_rows),
                ("attn_v", shape.d_model, kv_rows),
                ("attn_output", q_rows, shape.d_model),
                ("ffn_gate", shape.d_model, shape.d_ff),
                ("ffn_up", shape.d_model, shape.d_ff),
                ("ffn_down", shape.d_ff, shape.d_model),
            ):
                linear = nn.Linear(columns, rows, bias=False)
                depth = 2 * shape.n_layers if name in ("attn_output", "ffn_down") else 1
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(depth))
                setattr(self, name, linear)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            def heads(y: Any) -> Any:
                return y.unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)

            h = self.attn_norm(x)
            q, k = (rotated(heads(p(h)), cos, sin) for p in (self.attn_q, self.attn_k))
            v = heads(self.attn_v(h))
            group = shape.n_heads // shape.n_kv_heads
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            seen = functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
            mixed = self.attn_output(seen.transpose(1, 2).flatten(-2))
            x = x + functional.dropout(mixed, dropout, self.training)
            h = self.ffn_norm(x)
            inner = functional.silu(self.ffn_gate(h)) * self.ffn_up(h)
            return x + functional.dropout(self.ffn_down(inner), dropout, self.training)

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token_embd = nn.Embedding(shape.vocab, shape.d_model)
            nn.init.normal_(self.token_embd.weight, std=0.02)
            self.blk = nn.ModuleList(Block() for _ in range(shape.n_layers))
            self.output_norm = Norm()
            self.register_buffer("cos", angle.cos().float(), persistent=False)
            self.register_buffer("sin", angle.sin().float(), persistent=False)

        def forward(self, ids: Any) -> Any:
            x = self.token_embd(ids)
            cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
            for block in self.blk:
                x = block(x, cos, sin)
            return functional.linear(self.output_norm(x), self.token_embd.weight)

    return Llama()


def batches(
    tokens: NDArray[np.uint16], shape: Shape, rows: int, epochs: float, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Yield (rows, ctx + 1) ids: the documents of each epoch in a new order, cut into rows."""
    starts = np.flatnonzero(tokens == 0)  # BOS
    documents = np.split(tokens, starts[1:])
    rng = np.random.default_rng(seed)
    size = rows * (shape.ctx + 1)
    left = int(epochs * len(tokens)) // size
    rest: NDArray[np.uint16] = tokens[:0]
    while left > 0:
        order = rng.permutation(len(documents))
        rest = np.concatenate([rest, *(documents[i] for i in order)])
        whole = min(left, len(rest) // size)
        for batch in rest[: whole * size].reshape(whole, rows, -1):
            yield batch.astype(np.int64)
        rest, left = rest[whole * size :], left - whole


def train(work: Path, shape: Shape, args: argparse.Namespace) -> None:
    """Write weights.npz (float16) and training.log; on one kind of GPU always the same bits."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # these two are read at the import
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"  # no choice of kernels by their speed
    import torch
    from torch.nn import functional

    torch.manual_seed(args.seed)
    # Strictly, not with warn_only: only then flash attention adds gradients in a fixed order.
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = np.load(work / "tokens.npz")
    tokens, held = data["train"], data["held_out"]
    model = network(shape, args.dropout).to(device)
    n_weights = sum(p.numel() for p in model.parameters())
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=device == "cuda")
    forward = torch.compile(model) if device == "cuda" else model
    stack = np.array(held[: len(held) // shape.ctx * shape.ctx], np.int64).reshape(-1, shape.ctx)
    windows = torch.from_numpy(np.pad(stack, ((0, 0), (1, 0)))).to(device)  # BOS in front

    def loss_of(ids: Any, run: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            logits = run(ids[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    def held_out_loss() -> float:
        model.eval()
        with torch.no_grad():
            total = sum(float(loss_of(rows, model)) * len(rows) for rows in windows.split(16))
        model.train()
        return total / len(windows)

    steps = int(args.epochs * len(tokens)) // (args.rows * (shape.ctx + 1))
    log = (work / "training.log").open("w", buffering=1)

    def note(line: str) -> None:
        print(line, file=log)
        print(line, flush=True)

    place = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    note(f"# {place}, torch {torch.__version__}, seed {args.seed}, {n_weights} weights")
    note(f"# {json.dumps(asdict(shape))}")
    note(
        f"# {len(tokens)} tokens of sha256 {hashlib.sha256(tokens.tobytes()).hexdigest()[:16]}, "
        f"{args.epochs} epochs, {steps} steps of {args.rows} rows, lr {args.lr}, "
        f"dropout {args.dropout}"
    )
    note("step tokens seconds lr train_loss held_out_loss")
    started, losses = time.monotonic(), []
    for step, batch in enumerate(batches(tokens, shape, args.rows, args.epochs, args.seed), 1):
        rate = args.lr * min(step / WARMUP, 0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(torch.from_numpy(batch).to(device, non_blocking=True), forward)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if step % args.every == 0 or step == steps:
            mean, losses = float(torch.stack(losses).mean()), []
            seconds = time.monotonic() - started
            seen = step * args.rows * shape.ctx
            note(f"{step} {seen} {seconds:.1f} {rate:.2e} {mean:.4f} {held_out_loss():.4f}")
    weights = {name: p.detach().half().cpu().numpy() for name, p in model.named_parameters()}
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(weights[name].tobytes())
    note(f"# float16 weights, by name: sha256 {digest.hexdigest()}")
    log.close()
    np.savez(work / "weights.npz", **weights)


def export(work: Path, shape: Shape, mix: str, target: Path) -> None:
    """Write demo-F16.gguf to the work directory, the model in a mix to `target`, texts beside."""
    import gguf

    from rocmforge.model.requantize import quantize_gguf

    vocabulary = json.loads((work / "tokenizer.json").read_text())["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in vocabulary["merges"]]
    target.parent.mkdir(parents=True, exist_ok=True)
    source = work / "demo-F16.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_type("model")
    writer.add_name("ROCmForge demo")
    writer.add_description(DESCRIPTION)
    writer.add_license("WordNet-3.0")
    writer.add_license_name("WordNet 3.0 license (training text)")
    writer.add_languages(["en"])
    writer.add_file_type(1)
    writer.add_quantization_version(2)
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.ctx)
    writer.add_embedding_length(shape.d_model)
    writer.add_feed_forward_length(shape.d_ff)
    writer.add_vocab_size(shape.vocab)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in (BOS, EOS) else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(EOS))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in np.load(work / "weights.npz").items():
        writer.add_tensor(name, weight.astype(np.float32) if weight.ndim == 1 else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    quantize_gguf(source, target, mix)
    for name in ("held_out.txt", "training.log"):
        shutil.copyfile(work / name, target.parent / name)
    print(f"{target}: {target.stat().st_size} bytes")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps that are named; 0 when they are done."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="Example, the committed model: train_demo_model.py all --seed 0",
        allow_abbrev=False,
    )
    parser.add_argument("steps", nargs="+", choices=("text", "train", "export", "all"))
    parser.add_argument("--work", type=Path, default=Path("build/demo"), help="work directory")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--output", type=Path, default=Path("rocmforge/demo/demo.gguf"))
    parser.add_argument("--mix", default="Q8_0", help="formats of the output")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--rows", type=int, default=64, help="sequences in a batch")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=100, help="steps between lines of the log")
    for name, size in asdict(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    args = parser.parse_args(argv)
    shape = Shape(**{name: getattr(args, name) for name in asdict(Shape())})
    try:
        args.work.mkdir(parents=True, exist_ok=True)
        if {"text", "all"} & set(args.steps):
            make_text(args.work, args.wordnet, shape, args.seed)
        if {"train", "all"} & set(args.steps):
            train(args.work, shape, args)
        if {"export", "all"} & set(args.steps):
            export(args.work, shape, args.mix, args.output)
    except ModuleNotFoundError as error:
        print(f"{parser.prog}: {error}: pip install -e '.[train]'", file=sys.stderr)
        return BROKEN
    except (RuntimeError, ValueError, OSError) as error:  # RuntimeError: torch's own
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return BROKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
