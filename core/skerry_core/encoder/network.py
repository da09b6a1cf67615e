"""What an `Encoder` computes states with: a network, and where it says how to open one."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from skerry_core.kernels.simd.aliases import Int32, Int64
from skerry_core.kernels.simd.emitter import LANES
from skerry_core.runners.kernel_cache import KernelSet
from skerry_core.weights.tensors import Float32


class Network(Protocol):
    """A model that reads whole texts. Safe to use from several threads once it is packed."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_tokens(self) -> int:
        """Return those of one text, special ones included."""
        ...

    @property
    def parts(self) -> int:
        """Return how many parts of a text it distinguishes by an embedding of their own."""
        ...

    @property
    def num_classes(self) -> int:
        """Return those of the head for classification; 0 when it has none."""
        ...

    @property
    def packed_bytes(self) -> int:
        """Return the memory that `pack` takes."""
        ...

    @property
    def kernels(self) -> KernelSet:
        """Return what must be loaded before `pack`."""
        ...

    def pack(self) -> None:
        """Read the weights into memory, as the kernels want them. Raises WeightsError."""
        ...

    def release(self) -> None:
        """Free what `pack` took."""
        ...

    def scratch_size(self, tokens: int, longest: int) -> int:
        """Return the floats that `encode` needs for so many tokens in texts up to `longest`."""
        ...

    def encode(
        self,
        token_ids: Int32,  # i32[tokens]: of some texts, one after the other
        starts: Int64,  # i64[texts + 1]: where each begins, and the number of tokens
        second_starts: Int64,  # i64[texts]: tokens before each one's second part
        hidden: Float32,  # f32[tokens, hidden]: the last layer's states; written
        scratch: Float32,
    ) -> None:
        """Compute the states of some texts, without the GIL."""
        ...

    def classify(self, state: Float32, scores: Float32) -> None:
        """Compute scores f32[classes] of a text from its first token's state, f32[hidden]."""
        ...


def packed(weight: Float32) -> Float32:
    """Pack a matrix [outputs, inputs] as panels [outputs / 16, inputs, 16]; a vector stays."""
    if weight.ndim == 1:
        return np.ascontiguousarray(weight)
    outputs, inputs = weight.shape
    return np.ascontiguousarray(weight.reshape(outputs // LANES, LANES, inputs).swapaxes(1, 2))
