"""The inference engine: a GGUF model on a device, fed with token ids.

Owns the KV cache, and runs prefill and decode for any number of sequences. `loading.py` opens the
file and packs its weights; `model/decoder.py` says what a pass computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rocmforge.array_types import Floats
from rocmforge.env import SplitMode
from rocmforge.errors import EngineInUseError
from rocmforge.generation import Generation
from rocmforge.kv import KvDtype
from rocmforge.loading import Options, load
from rocmforge.model.config import ModelConfig
from rocmforge.one_call import Calls, one_call
from rocmforge.plan.observation import Observer
from rocmforge.plan.protocols import (
    Backend,
    Cache,
    Executor,
    ExecutorMemory,
    Progress,
    TimedPass,
)
from rocmforge.sampling import DRAW, Draw, SamplingParams
from rocmforge.text.tokenizer import Tokenizer

LOGITS_CHUNK = 512  # tokens of one pass whose logits are all wanted: bounds the memory of logits
R = TypeVar("R")


class Engine:
    """A loaded model with its KV cache. Made by `Engine.from_gguf`.

    A prompt that has run before runs whole again, so that it can be timed again and again.
    `add_prompt`, and `generate` with `share_prefixes`, take over what earlier ones left.

    Threads may use it in turn. A call while another one runs raises EngineInUseError; `release`
    alone is allowed at any time.

    An interrupt (Ctrl-C) at any moment loses no page: each is free, with a sequence, or kept for
    prompts that begin alike. End the sequences of the call that was interrupted: what they hold is
    not known.

    Attributes
    ----------
    config : ModelConfig
        The model's shape.
    backend : Backend
        The device's ops; of several devices, those of the last one, which has the output.
    cache : Cache
        Keys and values of all sequences.
    ctx : int
        Most tokens of one sequence.
    weight_bytes : int
        Memory of the packed weight matrices.
    streamed_layers : int
        How many of the first layers have their weights in the host's memory, from where the GPU
        that computes them reads them.
    streamed_bytes : int
        What these take of `weight_bytes`.
    """

    def __init__(
        self,
        resources: ExitStack,
        config: ModelConfig,
        executor: Executor,
        backend: Backend[Any],
        ctx: int,
        weight_bytes: int,
        devices: Sequence[str] = (),
        streamed_layers: int = 0,
        streamed_bytes: int = 0,
    ) -> None:
        self._calls: Calls = {}
        self._resources = resources
        self._executor = executor
        self.config = config
        self.backend = backend
        self._devices = tuple(devices)
        self.cache: Cache = executor.cache
        self.ctx = ctx
        self.weight_bytes = weight_bytes
        self.streamed_layers = streamed_layers
        self.streamed_bytes = streamed_bytes

    @classmethod
    def from_gguf(
        cls,
        path: str | os.PathLike[str],
        device: str | Sequence[str] | None = None,
        *,
        gpu_layers: int | Sequence[int] | None = None,
        split_mode: SplitMode = "layer",
        ctx: int | None = None,
        threads: int | None = None,
        sequences: int = 1,
        kv_dtype: KvDtype = "f16",
        page_size: int = 32,
        whole_cache: bool = False,
        weight_format: str | None = None,
        progress: Progress | None = None,
        compile_progress: Progress | None = None,
    ) -> Engine:
        """Load a model.

        Parameters
        ----------
        path
            GGUF file of one of the architectures in `rocmforge.model.architectures`.
        device
            "auto", "cpu", "hip", "cuda", or a GPU with its number, as "hip:1"; None:
            `ROCMFORGE_DEVICE`, else "auto": the best GPU, or the CPU where there is none. Several
            GPUs, as "hip:0,hip:1" or ["hip:0", "hip:1"], share the model: see `split_mode`.
        gpu_layers
            So many of the last layers, and the output, lie on the GPU or GPUs, the others on the
            CPU: for a model that does not fit. 0: all on the CPU; as many as the model has, or
            more: all on GPUs, as without it (None). A list has the number of each GPU. For split
            mode "stream" see there.
        split_mode
            How devices share the model. "layer": each has some layers, in proportion to its
            free memory, the first GPU the first ones; they work one after another. "tensor": each
            has a part of every matrix and some of the heads; they work at the same time and sum
            after each attention and feed-forward part. It wants GPUs that are alike. "stream": one
            GPU computes all layers; the weights of those that `gpu_layers` leaves out stay in the
            host's memory, which is page-locked, and are read over the bus in every pass.
        ctx
            Most tokens of one sequence; None: the trained context, at most 4096.
        threads
            CPU threads; None: `ROCMFORGE_THREADS`, else the cores that this process may run on.
        sequences
            The KV cache has pages for `sequences` · `ctx` tokens, which any number of sequences
            share. Their memory is taken as they fill: on a GPU that of 512 tokens, then twice as
            much each time, unless `whole_cache` is set.
        kv_dtype
            Type of stored keys and values; "q8_0" takes half the memory of "f16", and so does
            "fp8_e4m3", which is less accurate and for GPUs only.
        page_size
            Tokens in a page of the KV cache: 16, 32 or 64.
        whole_cache
            Take the memory of the whole cache while loading, on a GPU: what does not fit is an
            error then, and no measurement waits for it.
        weight_format
            Quantize the matrices anew to this format (a key of `FORMATS`) while loading, to see
            what a format costs; embedding rows stay as they are. A format becomes its
            `K_FALLBACK` where its blocks do not fit the columns. None: as in the file.
        progress
            Called with bytes loaded and bytes to load.
        compile_progress
            Called, on a GPU, with kernel files compiled and to compile.

        Raises
        ------
        GGUFError, ModelError
            The file is broken, or not a model that can be run, or not split so.
        DeviceError
            The device is missing, or the CPU where `gpu_layers` wants a GPU.
        OutOfMemoryError
            The model does not fit. It says how much is missing, and the `gpu_layers` that fit.
        ValueError
            An argument is out of range; there are more GPUs than layers for them; `ctx` is above
            what the model was trained for.
        """
        options = Options(
            device=device,
            gpu_layers=gpu_layers,
            split_mode=split_mode,
            ctx=ctx,
            threads=threads,
            sequences=sequences,
            kv_dtype=kv_dtype,
            page_size=page_size,
            whole_cache=whole_cache,
            weight_format=weight_format,
        )
        with ExitStack() as resources:
            made = load(path, options, resources, progress, compile_progress)
            backend = made.stages[-1].backend
            names = tuple(stage.name for stage in made.stages) if len(made.stages) > 1 else ()
            return cls(
                resources.pop_all(),
                made.config,
                made.executor,
                backend,
                made.ctx,
                made.weight_bytes,
                names,
                made.streamed_layers,
                made.streamed_bytes,
            )

    def __enter__(self) -> Engine:
        """Return the engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the engine; what ends the block is not hidden by a call that still runs."""
        with suppress(*([] if error is None else [EngineInUseError])):
            self.close()

    @property
    def devices(self) -> tuple[str, ...]:
        """Where the model lies, first layers first: ("cpu",) or ("hip",); ("cpu", "hip:0")."""
        return self._devices or (self.backend.name,)

    @one_call
    def close(self) -> None:
        """Close the model's file and give the device's memory back; on the CPU it goes with the
        engine object.
        """
        self._resources.close()

    @one_call
    def logits(self, ids: ArrayLike) -> Floats:
        """Return the logits after each token of a text, in a sequence of its own.

        Parameters
        ----------
        ids
            (T,) token ids, 1 to `ctx` of them.

        Returns
        -------
        (T, V) float32: row t scores the token that follows ids[0..t].

        Raises
        ------
        ValueError
            No ids, too many, or one that is not in the vocabulary.
        OutOfPagesError
            Other sequences hold the pages that this would need.
        """
        tokens = self._tokens(ids, room=self.ctx)
        table = self.cache.table
        try:
            sequence = table.add_sequence(tokens.size, owner=tokens)
            logits = np.empty((tokens.size, self.config.vocab_size), np.float32)
            for start in range(0, tokens.size, LOGITS_CHUNK):
                chunk = tokens[start : start + LOGITS_CHUNK]
                rows = np.arange(chunk.size, dtype=np.int32)
                logits[start : start + chunk.size] = self._executor.forward(
                    chunk, [sequence], [chunk.size], rows
                )
            return logits
        finally:
            table.release(tokens)

    @one_call
    def add_sequence(self, reserve_tokens: int = 0, owner: object = None) -> int:
        """Start an empty sequence and return its id.

        Parameters
        ----------
        reserve_tokens
            Length for which to take pages now, where it is known.
        owner
            Whose it is, for callers that an interrupt may keep from learning the id: `release`
            ends it by its owner, and so does the next `add_sequence` once the owner is gone.
            None: it lasts until `remove_sequence`.

        Raises
        ------
        OutOfPagesError
            Too few pages are free.
        """
        return self.cache.table.add_sequence(reserve_tokens, owner)

    @one_call
    def add_prompt(
        self, ids: ArrayLike, reserve_tokens: int = 0, owner: object = None
    ) -> tuple[int, int]:
        """Start a sequence for a prompt, with the keys and values that earlier prompts left of it.

        The prompts of such sequences share the full pages in which they begin with the same
        tokens. Once `prefill` or `prefill_token` has appended all that was missing, in one call,
        later prompts find this one's pages. They stay when the sequence ends; those used longest
        ago go first where room is needed. Nobody else's sequence is changed by that: pages that
        may be shared are never written.

        Parameters
        ----------
        ids
            (T,) token ids of the whole prompt.
        reserve_tokens, owner
            As of `add_sequence`.

        Returns
        -------
        sequence, held
            Its id, and how many tokens of the prompt it has, below T and a multiple of the page
            size. Continue with ``prefill(sequence, ids[held:])``.

        Raises
        ------
        ValueError
            No ids, too many, or one that is not in the vocabulary.
        OutOfPagesError
            Too few pages are free.
        """
        tokens = self._tokens(ids, room=self.ctx)
        sequence = self.cache.table.add_sequence(reserve_tokens, owner, tokens)
        return sequence, self.cache.table.length(sequence)

    @one_call
    def remove_sequence(self, sequence: int) -> None:
        """End a sequence and free its pages; ValueError where there is none of that id."""
        self.cache.table.remove(sequence)

    def release(self, owner: object) -> None:
        """End the sequences of an owner and free their pages; nothing where it has none.

        Any thread may do so while another one uses other sequences.
        """
        self.cache.table.release(owner)

    @one_call
    def prefill(self, sequence: int, ids: ArrayLike) -> Floats:
        """Append a prompt, or a further piece of one, to a sequence.

        Parameters
        ----------
        sequence
            Id from `add_sequence`.
        ids
            (T,) token ids, at least one.

        Returns
        -------
        (V,) float32 logits after the last token.

        Raises
        ------
        ValueError
            No such sequence, no ids, one that is not in the vocabulary, or more than `ctx` leaves.
        OutOfPagesError
            Too few pages are free; the sequence is as before.
        """

        def logits(last: NDArray[np.int64]) -> Floats:
            rows = np.array([last.size - 1], np.int32)
            row: Floats = self._executor.forward(last, [sequence], [last.size], rows)[0]
            return row

        return self._append(sequence, ids, logits)

    @one_call
    def prefill_token(self, sequence: int, ids: ArrayLike, draw: Draw) -> int:
        """Append a prompt as `prefill` does; return the token that follows it.

        Parameters
        ----------
        sequence, ids
            As of `prefill`.
        draw
            How to choose the token, from `rocmforge.sampling.Sampler.draw`.

        Raises
        ------
        ValueError
            As of `prefill`; or the logits hold NaN or +inf, or forbid every token.
        OutOfPagesError
            Too few pages are free; the sequence is as before.
        """

        def token(last: NDArray[np.int64]) -> int:
            draws = np.array([draw], DRAW)
            return self._executor.next_tokens(last, [sequence], [last.size], draws)[0]

        return self._append(sequence, ids, token)

    def _append(self, sequence: int, ids: ArrayLike, run: Callable[[NDArray[np.int64]], R]) -> R:
        """Append a prompt, if there are pages for all of it; `run` runs its last chunk."""
        table = self.cache.table
        length = table.length(sequence)
        tokens = rest = self._tokens(ids, room=self.ctx - length)
        table.reserve(sequence, length + tokens.size)
        most = self._executor.prefill_chunk
        while rest.size > most:
            rows = np.array([most - 1], np.int32)
            self._executor.forward(rest[:most], [sequence], [most], rows)
            rest = rest[most:]
        result = run(rest)
        table.share(sequence, length, tokens)
        return result

    @one_call
    def decode(self, sequences: Sequence[int], ids: ArrayLike) -> Floats:
        """Append one token to each of some sequences, in one pass.

        Parameters
        ----------
        sequences
            S different ids from `add_sequence`.
        ids
            (S,) token ids.

        Returns
        -------
        (S, V) float32 logits after those tokens.

        Raises
        ------
        ValueError
            Lengths differ, a sequence is unknown, repeated or full, an id is not in the vocabulary.
        OutOfPagesError
            Too few pages are free; no sequence has grown.
        """
        tokens = self._one_each(sequences, ids)
        rows = np.arange(tokens.size, dtype=np.int32)
        return self._executor.forward(tokens, sequences, [1] * len(sequences), rows)

    @property
    def runs_ahead(self) -> bool:
        """Whether `decode_tokens` with `following` begins the next step before it returns."""
        return self._executor.runs_ahead

    @one_call
    def decode_tokens(
        self,
        sequences: Sequence[int],
        ids: ArrayLike,
        draws: Sequence[Draw],
        following: Sequence[Draw] | None = None,
    ) -> list[int]:
        """Append one token to each of some sequences as `decode` does; return the next of each.

        Parameters
        ----------
        sequences, ids
            As of `decode`.
        draws
            How to choose each token, from `rocmforge.sampling.Sampler.draw`.
        following
            The draws of the next call, where all sequences are expected to go on with the tokens
            that this call returns: a GPU starts that step before this call returns (asynchronous
            scheduling). Another call throws it away.

        Raises
        ------
        ValueError
            As of `decode`; or the logits of one hold NaN or +inf, or forbid every token.
        OutOfPagesError
            Too few pages are free; no sequence has grown.
        """
        tokens = self._one_each(sequences, ids)
        if len(draws) != len(sequences):
            raise ValueError(f"draws: got {len(draws)}, wanted {len(sequences)}, one a sequence")
        if following is not None and len(following) != len(sequences):
            raise ValueError(
                f"following: got {len(following)}, wanted {len(sequences)}, one a sequence"
            )
        each = np.array(list(draws), DRAW)
        ahead = None if following is None else np.array(list(following), DRAW)
        return self._executor.next_tokens(tokens, sequences, [1] * len(sequences), each, ahead)

    def _one_each(self, sequences: Sequence[int], ids: ArrayLike) -> NDArray[np.int64]:
        """Check the sequences and ids of a step; return the ids."""
        _check_different(sequences)
        longest = self.cache.table.longest(sequences)
        if longest >= self.ctx:
            raise ValueError(f"ctx: got a sequence of {longest} tokens, wanted below {self.ctx}")
        tokens = self._tokens(ids, room=len(sequences))
        if tokens.size != len(sequences):
            raise ValueError(f"ids: got {tokens.size}, wanted {len(sequences)}, one a sequence")
        return tokens

    @one_call
    def timed_pass(self, sequences: Sequence[int], ids: Sequence[ArrayLike]) -> TimedPass:
        """Append tokens to sequences in one pass, and return that pass for timing.

        Parameters
        ----------
        sequences
            S different ids from `add_sequence`.
        ids
            (T,) token ids for each of them, together at most 512. The pass is that of `decode`
            where each gets one, and that of `prefill` where one sequence gets several.

        Returns
        -------
        TimedPass
            Its whole time, and its steps with their times, bytes and flops. Close it before the
            engine; nothing else may run while it is being timed.

        Raises
        ------
        ValueError
            As of `prefill` and `decode`, or the tokens are more than one pass takes.
        OutOfPagesError
            Too few pages are free; no sequence has grown.
        """
        _check_different(sequences)
        if len(ids) != len(sequences):
            raise ValueError(f"ids: got those of {len(ids)} sequences, wanted {len(sequences)}")
        table = self.cache.table
        each = [
            self._tokens(own, room=self.ctx - table.length(sequence))
            for sequence, own in zip(sequences, ids, strict=True)
        ]
        counts = [own.size for own in each]
        most = self._executor.prefill_chunk
        if sum(counts) > most:
            raise ValueError(f"ids: got {sum(counts)}, wanted at most {most} in one pass")
        last = (np.cumsum(counts) - 1).astype(np.int32)
        return self._executor.timed_pass(np.concatenate(each), sequences, counts, last)

    def memory(self) -> ExecutorMemory:
        """Return what is held besides `weight_bytes` and the cache: activations, inputs, constants.

        See `rocmforge.profiling.memory.memory_profile` for all of it.
        """
        return self._executor.memory()

    @contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Tell an observer of each pass of `prefill`, `decode` and `logits` in a `with` block.

        Observed passes take a little longer: on a CPU a stamp is taken around each op, on a GPU an
        event is recorded after each step of a prompt.
        """
        self._executor.observer = observer
        try:
            yield
        finally:
            self._executor.observer = None

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        share_prefixes: bool = False,
    ) -> Generation:
        """Continue one or many prompts, streaming.

        Parameters
        ----------
        prompts
            Token ids of each prompt, 1 to `ctx` of them.
        params
            How to sample; one for all or one for each; None: greedy, 128 tokens.
        tokenizer
            The model's. With it tokens carry text, the model's end tokens end a continuation,
            and stop strings work; without it only `max_tokens` and `stop_ids` do.
        share_prefixes
            Where a prompt begins like an earlier one, do not run that beginning again. Earlier ones
            are those of calls with `share_prefixes`, of this call too. Whole pages of `page_size`
            tokens are shared, so a shorter common beginning gains nothing. The tokens are the same.
            `stats.cached_tokens` counts what did not run. See `add_prompt`. Without it each prompt
            runs whole, as a measurement wants it.

        Returns
        -------
        Generation
            An iterator of `GeneratedToken`, whose `stats` hold the timings. Prompts for which
            the KV cache has no room yet wait until others have ended.

        Raises
        ------
        ValueError
            A prompt is empty, too long or holds an id that is not in the vocabulary; stop strings
            without a tokenizer; another number of params than prompts.
        """
        if params is None:
            params = SamplingParams()
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"params: got {len(each)}, wanted one, or {len(prompts)}")
        if tokenizer is None and any(p.stop for p in each):
            raise ValueError("stop: got stop strings but no tokenizer, wanted both")
        checked = [self._tokens(prompt, room=self.ctx).tolist() for prompt in prompts]
        add = self.add_prompt if share_prefixes else None
        return Generation(self, checked, each, tokenizer, add)

    def _tokens(self, ids: ArrayLike, room: int) -> NDArray[np.int64]:
        tokens = np.asarray(ids)
        if tokens.ndim == 0 and tokens.dtype.kind in "US":
            raise ValueError(f"ids: got text, {ids!r:.60}, wanted token ids: `Tokenizer.encode`")
        if tokens.ndim != 1 or not tokens.size:
            raise ValueError(f"ids: got shape {tokens.shape}, wanted (T,) with at least one id")
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"ids: got {tokens.dtype}, wanted integer token ids")
        if tokens.size > room:
            raise ValueError(f"ids: got {tokens.size}, wanted at most {room} (ctx {self.ctx})")
        wrong = tokens[(tokens < 0) | (tokens >= self.config.vocab_size)]
        if wrong.size:
            raise ValueError(f"ids: got {wrong[0]}, wanted 0 to {self.config.vocab_size - 1}")
        return tokens.astype(np.int64)


def _check_different(sequences: Sequence[int]) -> None:
    if len(set(sequences)) != len(sequences) or not sequences:
        raise ValueError(f"sequences: got {list(sequences)}, wanted different ids, at least 1")
