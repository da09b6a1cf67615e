"""A model that can be checked by hand, over a real paged cache.

The token after t0 … t(n-1) is (1·t0 + 2·t1 + … + n·t(n-1)) mod vocabulary, with the t's read back
through the block table: a wrong slot, a stale block, a lost prefix or a torn transfer changes the
answer. Each token's 32 bits are spread over both layers, K and V, and all dimensions, so that every
byte of a block matters, and in digits that each KV dtype holds exactly. The vocabulary should be of
prime size: with a power of two the upper digits and many positions drop out of the remainder.

The logit of a token is minus its distance upwards from that token (mod vocabulary), so sampling,
penalties and logprobs have something to work on, and greedy takes the token itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import Float32, ForwardBatch, Int32, Int64, StepResult
from skerry_core.config import BLOCK_SIZE, KVDtype, KVFormat, LayerConfig, ModelConfig
from skerry_core.kv.canonical import from_float32, kv_dtype, to_float32
from skerry_core.runner import Progress, RunnerSetup
from skerry_core.runners.checks import check_batch, check_block_data, check_blocks
from skerry_core.sampling import sample

NUM_LAYERS, HEAD_DIM = 2, 2
DIGIT_BITS = 4
UNWRITTEN_DIGIT = 15
# shifts[layer][k,v][dim] of the digit that is stored there
SHIFTS = DIGIT_BITS * np.arange(NUM_LAYERS * 2 * HEAD_DIM).reshape(NUM_LAYERS, 2, HEAD_DIM)


def next_token(token_ids: Int64, vocab_size: int) -> int:
    """Return the token that follows `token_ids` i64[n]: the model."""
    return int(token_ids @ np.arange(1, len(token_ids) + 1) % vocab_size)


class ToyRunner:
    """A `ModelRunner` without weights.

    `before_step` is called with each batch before it is computed: to take time, to wait, to fail.
    """

    batch_invariant = True

    def __init__(
        self,
        *,
        num_blocks: int,
        vocab_size: int = 257,
        max_context: int = 4096,
        max_step_tokens: int = 512,
        max_samples: int = 64,
        dtype: KVDtype = "float16",
        before_step: Callable[[ForwardBatch], None] | None = None,
    ) -> None:
        self.model = ModelConfig(
            architecture="toy",
            layers=(LayerConfig(),) * NUM_LAYERS,
            hidden_size=HEAD_DIM,
            intermediate_size=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=HEAD_DIM,
            vocab_size=vocab_size,
            max_context=max_context,
        )
        self.kv_format = KVFormat(
            num_layers=NUM_LAYERS, num_kv_heads=1, head_dim=HEAD_DIM, dtype=dtype
        )
        self.num_blocks = num_blocks
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.numeric_build = f"toy-1-{vocab_size}-{dtype}"
        self._before_step = before_step
        # [num_blocks, layer, k|v, kv_head, slot, head_dim]; the top digit of a slot that was not
        # written is set, so that it reads as a number beyond any vocabulary
        self._kv = np.zeros((num_blocks, *self.kv_format.shape), kv_dtype(dtype))
        self._kv[:, -1, -1, ..., -1] = from_float32(np.array(UNWRITTEN_DIGIT, np.float32), dtype)
        self._logits: Float32 = np.zeros((0, vocab_size), np.float32)
        self._falling: Float32 = -np.arange(vocab_size, dtype=np.float32)  # by distance

    @classmethod
    def from_setup(cls, setup: RunnerSetup) -> ToyRunner:
        """Open the toy model, which reads no file."""
        return cls(
            **asdict(setup.sizes.on_host()),
            vocab_size=setup.vocab_size,
            max_context=setup.max_context,
        )

    def warm_up(self, progress: Progress) -> None:
        progress("the toy model has nothing to compile", 1.0)

    def execute(self, batch: ForwardBatch) -> StepResult:
        check_batch(batch, self)
        if self._before_step is not None:
            self._before_step(batch)
        rows = np.repeat(np.arange(batch.num_rows), np.diff(batch.query_start))
        self._write(batch, rows)
        self._logits = np.empty((batch.num_samples, self.model.vocab_size), np.float32)
        for s, token in enumerate(batch.sample_tokens.tolist()):
            context = self._read(batch.block_tables[rows[token]], int(batch.positions[token]) + 1)
            self._score(context, self._logits[s])
        return sample(self._logits, batch.sampling)

    def _score(self, context: Int64, logits: Float32) -> None:
        """Write logits f32[V] of what follows a context i64[n]."""
        expected = next_token(context, len(logits))
        logits[expected:] = self._falling[: len(logits) - expected]
        logits[:expected] = self._falling[len(logits) - expected :]

    def _write(self, batch: ForwardBatch, rows: Int64) -> None:
        blocks = batch.block_tables[rows, batch.positions // BLOCK_SIZE]
        digits = batch.token_ids[:, None, None, None] >> SHIFTS & (1 << DIGIT_BITS) - 1
        # Advanced indices around slices: the token axis comes first, then [layer, k|v, head_dim].
        self._kv[blocks, :, :, 0, batch.positions % BLOCK_SIZE] = from_float32(
            digits.astype(np.float32), self.kv_format.dtype
        )

    def _read(self, block_table: Int32, num_tokens: int) -> Int64:
        """Read tokens i64[num_tokens] of a context out of the cache."""
        blocks = block_table[: -(-num_tokens // BLOCK_SIZE)]
        digits = to_float32(self._kv[blocks, :, :, 0], self.kv_format.dtype).astype(np.int64)
        # [block, layer, k|v, slot, head_dim] → [block, slot]
        tokens = (digits << SHIFTS[:, :, None, :]).sum(axis=(1, 2, 4))
        return tokens.reshape(-1)[:num_tokens]

    def last_logits(self) -> Float32:
        return self._logits

    def export_block(self, block: int) -> NDArray[np.generic]:
        check_blocks([block], self.num_blocks)
        return self._kv[block].copy()

    def admit_block(self, block: int, data: NDArray[np.generic]) -> None:
        check_blocks([block], self.num_blocks)
        check_block_data(data, self.kv_format)
        self._kv[block] = data

    def close(self) -> None:
        """Release nothing."""
