"""BERT-like encoders, computed: their weights packed, over the kernels of `forward`."""

from __future__ import annotations

import numpy as np

from skerry_core import exact_math
from skerry_core.encoder import classifier, forward, ops
from skerry_core.encoder.bert import BertFile
from skerry_core.encoder.network import packed
from skerry_core.kernels import simd
from skerry_core.kernels.simd.aliases import Int32, Int64
from skerry_core.kernels.simd.memory import address
from skerry_core.runners.kernel_cache import KernelSet
from skerry_core.weights.tensors import Float32


class BertNetwork:
    """A `Network` of a BERT-like file."""

    def __init__(self, file: BertFile) -> None:
        self.file = file
        self.config = file.config
        self.hidden_size = file.config.hidden_size
        self.vocab_size = file.config.vocab_size
        self.max_tokens = file.config.max_tokens
        self.parts = file.config.parts
        self.num_classes = file.num_classes
        self.kernels = ENCODER_KERNELS
        self._weights: _PackedBert | None = None

    @property
    def packed_bytes(self) -> int:
        """Return the memory of all but the words, which stay in the file."""
        size, inner = self.config.hidden_size, self.config.intermediate_size
        return 4 * self.config.num_hidden_layers * size * (4 * size + 2 * inner)

    def pack(self) -> None:
        self._weights = _PackedBert(self.file)

    def release(self) -> None:
        self._weights = None

    def scratch_size(self, tokens: int, longest: int) -> int:
        config = self.config
        return forward.scratch_size(
            tokens, longest, config.hidden_size, config.intermediate_size, config.head_dim
        )

    def encode(
        self,
        token_ids: Int32,
        starts: Int64,
        second_starts: Int64,
        hidden: Float32,
        scratch: Float32,
    ) -> None:
        weights, config = self._packed(), self.config
        forward.encode(
            token_ids, starts, second_starts, config.first_position, address(weights.words),
            weights.positions, weights.norm, weights.layers, config.intermediate_size,
            config.head_dim, config.layer_norm_eps, hidden, scratch,
        )  # fmt: skip

    def classify(self, state: Float32, scores: Float32) -> None:
        head = self._packed().head
        assert head is not None  # where there are classes
        classifier.classify(
            state, head.dense, head.dense_bias, head.rectifies, head.out, head.out_bias, scores
        )

    def _packed(self) -> _PackedBert:
        if self._weights is None:
            raise RuntimeError("the network is not packed")
        return self._weights


class _PackedBert:
    """What the kernels read: matrices packed into panels, words left in the mapped file."""

    def __init__(self, file: BertFile) -> None:
        self.words = file.words()
        self.positions = np.ascontiguousarray(file.positions())
        self.norm = np.ascontiguousarray(file.norm())
        self.head = file.head()
        layers = range(file.config.num_hidden_layers)
        # What `layers` points into.
        self._arrays = [[packed(each) for each in file.layer(index)] for index in layers]
        self.layers = np.array(
            [[address(each) for each in arrays] for arrays in self._arrays], np.int64
        )


ENCODER_KERNELS = KernelSet(
    name="encoder",
    reference=f"{__name__}:ENCODER_KERNELS",
    sources=(simd, classifier, ops, forward, exact_math),
    constants=(),
    kernels=lambda variant: {
        "encode": (forward.encode, forward.ENCODE),
        "pool": (forward.pool, forward.POOL),
        "classify": (classifier.classify, classifier.CLASSIFY),
        "matmul": (forward.matmul, forward.MATMUL),
    },
)
"""Of one variant: the kernels look up the CPU's vectors by themselves."""
