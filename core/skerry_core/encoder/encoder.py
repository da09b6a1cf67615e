"""Encoders on the CPU: token ids of whole texts in, one vector per text out.

A vector is made of the states of a text's tokens, or holds the scores of its classes. fp32
throughout. Texts are put into chunks without padding; each thread runs whole chunks by itself,
outside the GIL. A text's vector has the same bits alone, in any batch and with any number of
threads, on every CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import ConfigError
from skerry_core.encoder import forward
from skerry_core.encoder.network import Network
from skerry_core.encoder.opening import open_network
from skerry_core.encoder.projections import Projection, open_projections
from skerry_core.runner import Progress
from skerry_core.runners.kernel_cache import load_kernels
from skerry_core.weights.tensors import Float32

Pooling = Literal["mean", "cls", "max", "last"]
"""A text's vector: the average over its tokens, the first one's state, each dimension's largest
value, or the last token's state."""

Kind = Literal["mean", "cls", "max", "last", "classes"]
"""A text's vector by pooling, or the scores that the model's head gives its classes."""

_POOLINGS = {
    "mean": forward.MEAN, "cls": forward.CLS, "max": forward.MAX, "last": forward.LAST,
}  # fmt: skip

CHUNK_TOKENS = 256  # of short texts together: enough to read each weight once for many tokens
MIN_CHUNK_TOKENS = 32  # less is not worth another thread's turn


class Encoder:
    """A model that reads whole texts. One caller at a time; `threads` work on its texts."""

    def __init__(
        self,
        network: Network,
        *,
        threads: int,
        cache_dir: Path,
        projections: Sequence[Projection] = (),
    ) -> None:
        """Maps nothing new and compiles nothing yet: `warm_up` does. Raises ConfigError.

        `projections` are applied one after the other to each pooled vector.
        """
        if not 1 <= threads <= 256:
            raise ConfigError(f"threads must be 1 to 256, got {threads}")
        self.network = network
        self.width = projections[-1].outputs if projections else network.hidden_size  # of vectors
        self.max_tokens = network.max_tokens  # of one text, special ones included
        self.num_classes = network.num_classes  # of its head; 0 when it has none
        self._projections = tuple(projections)
        self._threads = threads
        self._cache_dir = cache_dir
        self._memory = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    @classmethod
    def open(cls, weights: Path, *, threads: int, cache_dir: Path) -> Encoder:
        """Open `weights`, a `.safetensors` file with its `config.json` beside it, or their folder.

        Compiled code is kept in `cache_dir`. Raises WeightsError, ConfigError and OSError.
        """
        network = open_network(weights)
        folder = weights if weights.is_dir() else weights.parent
        projections = open_projections(folder, network.hidden_size)
        return cls(network, threads=threads, cache_dir=cache_dir, projections=projections)

    def warm_up(self, progress: Progress) -> None:
        """Pack the weights, compile or load the kernels, start the threads; once."""
        if self._is_closed:
            raise RuntimeError("the encoder is closed")
        if self._pool is not None:
            return
        load_kernels(self.network.kernels, "cpu", self._cache_dir, progress)
        progress("packing the encoder's weights", 0.8)
        self.network.pack()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="skerry-encoder")
        progress("packing the encoder's weights", 1.0)

    def encode(
        self, texts: Sequence[Sequence[int]], *, pooling: Pooling = "mean", normalize: bool = True
    ) -> Float32:
        """Return one vector per text, in order: f32[texts, width].

        A text is its token ids, special ones included. Raises ValueError for one that is empty,
        longer than `max_tokens`, or holds an id beyond the vocabulary.
        """
        out = np.empty((len(texts), self.width), np.float32)
        kind = _POOLINGS[pooling]

        def finish(hidden: Float32, index: int) -> None:
            if not self._projections:
                forward.pool(hidden, kind, normalize, out[index])
                return
            vector = np.empty(hidden.shape[1], np.float32)
            forward.pool(hidden, kind, False, vector)
            for projection in self._projections:
                vector = projection.apply(vector)
            forward.pool(vector[None], forward.CLS, normalize, out[index])

        self._run([self.check(ids) for ids in texts], (), finish)
        return out

    def classify(
        self, texts: Sequence[Sequence[int]], *, second_starts: Sequence[int] = ()
    ) -> Float32:
        """Return one score per class and text, before softmax or sigmoid: f32[texts, classes].

        `second_starts` holds, for texts of two parts, how many tokens come before the second one.
        Raises as `encode` does, and ConfigError for a model without a head.
        """
        if not self.num_classes:
            raise ConfigError("the model has no head for classification")
        out = np.empty((len(texts), self.num_classes), np.float32)

        def finish(hidden: Float32, index: int) -> None:
            self.network.classify(hidden[0], out[index])

        self._run([self.check(ids) for ids in texts], second_starts, finish)
        return out

    def close(self) -> None:
        """Stop the threads and free the weights. Idempotent."""
        self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None
        self.network.release()

    def check(self, ids: Sequence[int]) -> NDArray[np.int32]:
        """Return a text as the kernels take it. Raises ValueError for what they would crash on."""
        if not 1 <= len(ids) <= self.max_tokens:
            raise ValueError(f"a text of {len(ids)} tokens; 1 to {self.max_tokens} fit")
        array = np.asarray(ids, np.int64)
        if array.min() < 0 or array.max() >= self.network.vocab_size:
            raise ValueError(f"token ids must be in [0, {self.network.vocab_size})")
        return array.astype(np.int32)

    def _run(
        self, texts: list[NDArray[np.int32]], second_starts: Sequence[int], finish: _Finish
    ) -> None:
        self.warm_up(lambda message, share: None)
        assert self._pool is not None
        lengths = list(map(len, texts))
        begins = list(second_starts) if second_starts and self.network.parts > 1 else lengths
        if len(begins) != len(texts):
            raise ValueError(f"{len(begins)} second parts of {len(texts)} texts")
        total = sum(lengths)
        target = min(CHUNK_TOKENS, max(MIN_CHUNK_TOKENS, -(-total // self._threads)))
        tasks = [
            self._pool.submit(
                self._run_chunk,
                [texts[i] for i in chunk],
                [begins[i] for i in chunk],
                chunk,
                finish,
            )
            for chunk in chunks(lengths, target)
        ]
        for task in tasks:
            task.result()

    def _run_chunk(
        self,
        texts: list[NDArray[np.int32]],
        second_starts: list[int],
        indices: list[int],
        finish: _Finish,
    ) -> None:
        starts = np.concatenate([[0], np.cumsum([len(ids) for ids in texts])]).astype(np.int64)
        tokens, longest = int(starts[-1]), max(map(len, texts))
        hidden, scratch = self._scratch(tokens, longest)
        self.network.encode(
            np.concatenate(texts), starts, np.array(second_starts, np.int64), hidden, scratch
        )
        for place, index in enumerate(indices):
            finish(hidden[starts[place] : starts[place + 1]], index)

    def _scratch(self, tokens: int, longest: int) -> tuple[Float32, Float32]:
        """Return this thread's memory, allocated again when a chunk needs more."""
        size = self.network.scratch_size(tokens, longest)
        memory = self._memory
        if getattr(memory, "scratch", np.empty(0)).size < size:
            memory.scratch = np.empty(size, np.float32)
        if getattr(memory, "hidden", np.empty((0, 0))).shape[0] < tokens:
            memory.hidden = np.empty((tokens, self.network.hidden_size), np.float32)
        return memory.hidden[:tokens], memory.scratch


class _Finish(Protocol):
    """Takes a text's states, valid during the call, and the text's place in the batch."""

    def __call__(self, hidden: Float32, index: int, /) -> None: ...


def chunks(lengths: Sequence[int], target: int) -> list[list[int]]:
    """Return indices of texts that run together: up to `target` tokens, or one longer text.

    Longest first, so that threads finish at about the same time.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    out: list[list[int]] = []
    room = 0
    for index in order:
        if lengths[index] > room:
            out.append([])
            room = target
        out[-1].append(index)
        room -= lengths[index]
    return out
