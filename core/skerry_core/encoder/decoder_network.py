"""Decoders that embed (Qwen3-Embedding, EmbeddingGemma), computed: a family of `models.registry`
without its head, in float32.

`decoder_forward` keeps no KV; what a family does that it has not heard of is refused by name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numba import types

from skerry_core import exact_math
from skerry_core.config import LayerConfig, ModelConfig
from skerry_core.encoder import decoder_forward, forward, ops
from skerry_core.encoder.network import packed
from skerry_core.kernels import simd
from skerry_core.kernels.activations import ACTIVATIONS
from skerry_core.kernels.cpu import rope_tables as rope_kernels
from skerry_core.kernels.cpu import rowwise
from skerry_core.kernels.cpu.rope_tables import rope_tables
from skerry_core.kernels.simd.aliases import Int32, Int64
from skerry_core.kernels.simd.emitter import LANES
from skerry_core.kernels.simd.memory import address
from skerry_core.models.tensor_names import EMBEDDING, FINAL_NORM, expected_shapes
from skerry_core.models.weight_file import WeightFile
from skerry_core.runners.kernel_cache import KernelSet
from skerry_core.weights.tensors import FileTensor, Float32, WeightsError, dequantize

EMBEDDERS = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")  # config.json's `model_type`
KNOWN: frozenset[str] = frozenset(
    {
        "biases of q, k and v",
        "norms of the heads of q and k",
        "norms after each branch",
        "GELU",
        "scaled rotary embeddings",
        "rotary embeddings that differ by layer",
        "a sliding window",
        "sliding windows that differ by layer",
        "an attention scale of its own",
        "scaled embeddings",
        "attention in both directions",
    }
)
_EVERYTHING = 1 << 30  # more tokens than a text has
_F64 = types.Array(types.float64, 1, "C")
_F32_ROWS = types.Array(types.float32, 2, "C")


def check_decoder(config: ModelConfig, file: str) -> None:
    """Raise WeightsError, or ConfigError for a feature, where a decoder cannot embed here."""
    config.check_known(KNOWN, "models that embed")
    sizes = (config.hidden_size, config.intermediate_size, config.head_dim)
    if any(size % LANES for size in sizes):
        raise WeightsError(
            f"{file}: hidden_size, intermediate_size and head_dim must be multiples of {LANES}, "
            f"got {', '.join(map(str, sizes))}"
        )


class DecoderNetwork:
    """A `Network` of a decoder's layers."""

    parts = 1
    num_classes = 0

    def __init__(self, config: ModelConfig, tensors: dict[str, FileTensor]) -> None:
        self.config = config
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.max_tokens = config.max_context
        self.kernels = DECODER_KERNELS
        self._tensors = tensors
        self._weights: _PackedDecoder | None = None

    @classmethod
    def open(cls, folder: Path) -> DecoderNetwork:
        """Map and check a folder of safetensors. Raises WeightsError, ConfigError and OSError."""
        with WeightFile.open(folder, is_headless=True) as file:
            check_decoder(file.config, str(folder / "config.json"))
            return cls(file.config, dict(file.tensors))

    @property
    def packed_bytes(self) -> int:
        """Return the memory of all but the words, which stay in the file."""
        shapes = expected_shapes(self.config)
        return sum(4 * int(np.prod(shape)) for name, shape in shapes.items() if name != EMBEDDING)

    def pack(self) -> None:
        self._weights = _PackedDecoder(self.config, self._tensors)

    def release(self) -> None:
        self._weights = None

    def scratch_size(self, tokens: int, longest: int) -> int:
        config = self.config
        return decoder_forward.scratch_size(
            tokens, longest, config.hidden_size, config.num_heads, config.num_kv_heads,
            config.head_dim, config.intermediate_size,
        )  # fmt: skip

    def encode(
        self,
        token_ids: Int32,
        starts: Int64,
        second_starts: Int64,
        hidden: Float32,
        scratch: Float32,
    ) -> None:
        weights, config = self._weights, self.config
        if weights is None:
            raise RuntimeError("the network is not packed")
        scale = config.attention_scale
        hidden[:] = weights.embedded(token_ids)
        decoder_forward.run_layers(
            hidden, starts, weights.layers, weights.sizes, weights.ropes, weights.zeros,
            weights.final_norm, config.rms_norm_eps,
            config.head_dim**-0.5 if scale is None else scale, scratch,
        )  # fmt: skip

    def classify(self, state: Float32, scores: Float32) -> None:
        raise WeightsError("the model has no head for classification")


class _PackedDecoder:
    """What the kernels read: matrices packed into panels, words left in the mapped file."""

    def __init__(self, config: ModelConfig, tensors: dict[str, FileTensor]) -> None:
        words = tensors[EMBEDDING]
        if not isinstance(words.source, np.ndarray):  # made when it is read: so it is made once
            words = FileTensor(words.format, words.shape, words.data)
        self._words = words
        self._scale = np.float32(config.embedding_scale)
        self._tensors = tensors
        self._arrays: list[Float32] = []  # what `layers` points into
        self.final_norm = dequantize(tensors[FINAL_NORM])
        self.layers = np.array(
            [self._layer(config, number, layer) for number, layer in enumerate(config.layers)],
            np.int64,
        )
        widest = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        scores = config.max_context + LANES  # whole panels of them
        self.zeros = np.zeros(max(widest, 2 * config.intermediate_size, scores), np.float32)
        self.sizes = np.array(
            [
                config.num_heads, config.num_kv_heads, config.head_dim, config.rotated,
                config.intermediate_size, ACTIVATIONS.index(config.activation),
            ],
            np.int64,
        )  # fmt: skip
        tables = [rope_tables(rope, config.rotated, config.max_context) for rope in config.ropes]
        nothing = np.empty((0, 2, 0, config.rotated // 2), np.float32)
        self.ropes = np.stack([np.stack(each) for each in tables]) if tables else nothing

    def embedded(self, token_ids: Int32) -> Float32:
        """Return f32[tokens, hidden]: each token's row, scaled."""
        words = self._words
        rows = np.ascontiguousarray(words.rows[token_ids]).reshape(-1)
        found = dequantize(FileTensor(words.format, (len(token_ids), words.shape[1]), rows))
        return found if self._scale == 1 else found * self._scale

    def _layer(self, config: ModelConfig, number: int, layer: LayerConfig) -> list[int]:
        def kept(*names: str, kind: str = "weight") -> int:
            """Return where a matrix or vector of these tensors below one another lies; 0 where
            there are none."""
            tensors = [f"blk.{number}.{name}.{kind}" for name in names]
            if tensors[0] not in self._tensors:
                return 0
            values = np.concatenate([dequantize(self._tensors[each]) for each in tensors])
            self._arrays.append(packed(values))
            return address(self._arrays[-1])

        seen = _EVERYTHING if layer.window is None else layer.window
        before = seen // 2 if config.is_bidirectional else seen - 1
        return [
            kept("attn_norm"),
            kept("attn_q", "attn_k", "attn_v"),
            kept("attn_q", "attn_k", "attn_v", kind="bias"),
            kept("attn_q_norm"),
            kept("attn_k_norm"),
            kept("attn_output"),
            kept("post_attention_norm"),
            kept("ffn_norm"),
            kept("ffn_gate", "ffn_up"),
            kept("ffn_down"),
            kept("post_ffw_norm"),
            -1 if layer.rope is None else config.ropes.index(layer.rope),
            before,
            before if config.is_bidirectional else 0,
        ]


DECODER_KERNELS = KernelSet(
    name="encoder-decoder",
    reference=f"{__name__}:DECODER_KERNELS",
    sources=(simd, ops, forward, rowwise, rope_kernels, decoder_forward, exact_math),
    constants=(ACTIVATIONS,),
    kernels=lambda variant: {
        "run_layers": (decoder_forward.run_layers, decoder_forward.RUN_LAYERS),
        "pool": (forward.pool, forward.POOL),
        "matmul": (forward.matmul, forward.MATMUL),
        "frequencies": (rope_kernels.fill_frequencies, (types.float64, _F64)),
        "tables": (rope_kernels.fill_tables, (_F64, types.float64, _F32_ROWS, _F32_ROWS)),
    },
)
"""Of one variant, as `bert_network.ENCODER_KERNELS`."""
