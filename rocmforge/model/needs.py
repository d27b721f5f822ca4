"""What a model takes of its devices' memory, and what to tell where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rocmforge.errors import OutOfMemoryError
from rocmforge.gguf.header import TensorInfo
from rocmforge.model.config import ModelConfig
from rocmforge.model.tensor_shapes import layer_of, tensor_shapes
from rocmforge.quantities import human_size
from rocmforge.split.placement import fitting_layers, split_layers, taken_bytes

EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class Needs:
    """Bytes that a model takes on GPUs.

    Parameters
    ----------
    config, tensors
        The model, and what is in its file; one that is missing is refused when it is loaded.
    nbytes
        Of a matrix as it is packed, or of a vector.
    cached
        Of each layer's keys and values.
    tokens
        How many these are of.
    wanted
        How many of the last layers are to lie on GPUs, or a number for each GPU.
    """

    config: ModelConfig
    tensors: Mapping[str, TensorInfo]
    nbytes: Callable[[TensorInfo], int]
    cached: Sequence[int]
    tokens: int
    wanted: int | Sequence[int]

    @property
    def on_gpus(self) -> int:
        """How many of the last layers lie on GPUs."""
        return self.wanted if isinstance(self.wanted, int) else sum(self.wanted)

    def shares(self, rooms: Sequence[int]) -> list[int]:
        """How many layers each GPU gets, where each has so much room."""
        if not isinstance(self.wanted, int):
            return list(self.wanted)
        layers, output = self._layers(len(rooms))
        return split_layers(self._last(layers), output, rooms)

    def advice(self, rooms: Sequence[int]) -> str:
        """Say how much memory GPUs lack, and how many layers they have room for."""
        layers, output = self._layers(len(rooms))
        taken = taken_bytes(self._last(layers), output, self.shares(rooms))
        missing = sum(max(0, own - most) for own, most in zip(taken, rooms, strict=True))
        told = (
            f"{self.on_gpus} of {len(layers)} layers and the output take {human_size(sum(taken))} "
            f"with keys and values of {self.tokens} tokens"
        )
        if missing == 0:
            return f"{told}, for which there was room before loading"
        told += f", {human_size(missing)} more than there is room for"
        fitting, streamed = fitting_layers(layers, output, rooms), self._fitting_stream(rooms)
        if fitting == 0:
            told += "; wanted a smaller context, or the CPU (device cpu)"
        else:
            told += f"; gpu_layers={fitting} (--gpu-layers {fitting}) has room"
        if streamed is None:
            return told
        mode = "split_mode=stream (--split-mode stream)"
        return f"{told}, or gpu_layers={streamed} (--gpu-layers {streamed}) with {mode}"

    def advice_for_parts(self, rooms: Sequence[int]) -> str:
        """Say how much memory each GPU needs for its part of every matrix."""
        blocks, embedding, output = self._blocks()
        whole = output if self.config.tied_output else embedding
        cut = sum(blocks) + (0 if self.config.tied_output else output)
        return (
            f"a part of every matrix takes about {human_size(cut // len(rooms) + whole)} on each "
            f"of {len(rooms)} GPUs, with keys and values of {self.tokens} tokens, and the least "
            f"room was {human_size(min(rooms))}; wanted a smaller context, or more GPUs"
        )

    def advice_for_stream(self, rooms: Sequence[int]) -> str:
        """Say how much memory a GPU needs beside the weights that stay in the host's memory."""
        weights, always = self._weights()
        taken, room = sum(self._last(weights)) + always, rooms[0]
        told = (
            f"{self.on_gpus} of {len(weights)} layers, the embedding, the output, and keys and "
            f"values of {self.tokens} tokens take {human_size(taken)}"
        )
        if taken <= room:
            return f"{told}, for which there was room before loading"
        told += f", {human_size(taken - room)} more than there is room for"
        fitting = self._fitting_stream(rooms)
        if fitting is None:
            return f"{told}; wanted a smaller context"
        return f"{told}; gpu_layers={fitting} (--gpu-layers {fitting}) has room"

    def check_host(self, free: int) -> None:
        """OutOfMemoryError where the weights that stay in the host's memory do not fit there."""
        weights, _ = self._weights()
        streamed = weights[: len(weights) - self.on_gpus]
        if sum(streamed) <= free:
            return
        most = sum(total <= free for total in accumulate(weights))
        raise OutOfMemoryError(
            f"the host's memory: got {human_size(free)} that are free, wanted "
            f"{human_size(sum(streamed))} for the weights of {len(streamed)} layers; "
            f"gpu_layers={len(weights) - most} (--gpu-layers {len(weights) - most}) or more leaves "
            "what fits"
        )

    def _fitting_stream(self, rooms: Sequence[int]) -> int | None:
        """Of how many layers one GPU has room for the weights where it streams the others.

        None: it lacks room for what is on it in any case, or there are several.
        """
        weights, always = self._weights()
        if len(rooms) > 1 or always > rooms[0]:
            return None
        return fitting_layers(weights, always, rooms)

    def _last(self, layers: Sequence[int]) -> Sequence[int]:
        """Of the layers that lie on GPUs."""
        return layers[len(layers) - self.on_gpus :]

    def _weights(self) -> tuple[list[int], int]:
        """Bytes of each layer's weights, and of what is on the GPU beside them in any case."""
        blocks, embedding, output = self._blocks()
        weights = [every - own for every, own in zip(blocks, self.cached, strict=True)]
        tied = self.config.tied_output
        return weights, output + sum(self.cached) + (0 if tied else embedding)

    def _layers(self, gpus: int) -> tuple[list[int], int]:
        """Bytes of each layer, with its keys and values, and of the output.

        The embedding goes with the first layer; one GPU has it once where the output is tied to it.
        """
        layers, embedding, output = self._blocks()
        if gpus > 1 or not self.config.tied_output:
            layers[0] += embedding
        return layers, output

    def _blocks(self) -> tuple[list[int], int, int]:
        """Bytes of each layer, with its keys and values, of the embedding and of the output."""
        config, layers, embedding, output = self.config, list(self.cached), 0, 0
        for name in tensor_shapes(config):
            info = self.tensors.get(name)
            if info is None:
                continue
            layer = layer_of(name)
            if layer is not None:
                layers[layer] += self.nbytes(info)
            if name == EMBEDDING:
                embedding = info.nbytes
            if name == (EMBEDDING if config.tied_output else "output.weight"):
                output = self.nbytes(info)
        return layers, embedding, output
