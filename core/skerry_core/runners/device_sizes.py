"""How many streams, tokens of a step and blocks of KV a device's memory has room for.

What the weights leave is KV's, but for what a step needs meanwhile: activations of its tokens,
logits and what is chosen of them, cuBLAS's workspaces, parts of attention. All captured graphs
share it. A step has 8,192 tokens unless their activations take more than an eighth of the room, and
there are 256 streams unless that leaves each less than 2,048 tokens of KV.

Torch and JAX count alike, but for what XLA's calls keep besides: what all layers add to the KV,
until it is written, and scores of a prompt's own tokens for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry_core.config import BLOCK_SIZE, ConfigError, ModelConfig
from skerry_core.runner import RunnerSizes, WantedSizes

PIECE_BLOCKS = 4  # of KV, that attention takes in one piece (`kernels.triton.attention`)
USUAL_PIECES = 32  # of a row's context, that a graph has room for: 8,192 tokens
_ROW_STEP = 32  # rows of a graph: above it its multiples
_WORKSPACE_BYTES = 2 * (32 << 20)  # of cuBLAS on Hopper: steps' stream and that of captures
_ADJUSTING_COPIES = 4  # of the logits, in float32, where penalties, masks or logprobs need them
GATHERED = 16_384  # tokens of a row, at most, that a search keeps beside the logits
_GATHERED_BYTES = 4 + 4 + 8  # of each: logit, id and weight
_ADDED_COPIES = 2  # of a step's KV: as layers made it, and as it is written
_SCORE_BYTES = 4 + 4 + 4  # of a query and a key: as multiplied, masked, and as a share
_RESERVED = 20  # one part of so many of the memory: fragments, kernels, what others take
_SCRATCH = 8  # a step's activations take one part of so many at most
_STEP_TOKENS = (8192, 4096, 2048, 1024, 512)
_STREAMS = (256, 192, 128, 96, 64)
_STREAM_BLOCKS = 32  # of KV for each stream: 2,048 tokens
_LEAST_BLOCKS = 8  # less serves no request


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    """Bytes of a device with memory of its own."""

    total: int
    free: int  # beside the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeed:
    """What decides how many bytes a step of a model takes."""

    config: ModelConfig
    block_bytes: int  # of KV, as it is stored
    element_bytes: int  # of activations
    is_invariant: bool = False  # all attention goes in pieces
    is_xla: bool = False

    def step_bytes(self, tokens: int) -> int:
        """Return bytes of activations of a step."""
        scores = _SCORE_BYTES * self.config.num_heads * tokens if self.is_xla else 0
        return tokens * (self.token_bytes() + scores)

    def token_bytes(self) -> int:
        """Return bytes of activations for each token of a step, but for scores."""
        c = self.config
        heads = 2 * (c.num_heads + c.num_kv_heads) * c.head_dim  # queries, keys, values, mixed
        elements = 4 * c.hidden_size + heads + 3 * c.intermediate_size
        parts = self._part_bytes() * self._longest() if self.is_invariant else 0
        added = _ADDED_COPIES * self.block_bytes // BLOCK_SIZE if self.is_xla else 0
        return self.element_bytes * elements + parts + added

    def streams_bytes(self, streams: int) -> int:
        """Return bytes that so many streams take beside their KV and their tokens."""
        rows, vocab_size = row_buckets(streams)[-1], self.config.vocab_size
        logits = (self.element_bytes + 4 + 1) * vocab_size  # as multiplied, in float32, and bins
        gathered = _GATHERED_BYTES * min(GATHERED, vocab_size)
        copies = 4 * _ADJUSTING_COPIES * vocab_size * streams
        parts = min(self._longest(), USUAL_PIECES + 1) * self._part_bytes()
        return rows * (logits + gathered + parts) + copies + _WORKSPACE_BYTES

    def kept_bytes(self) -> int:
        """Return bytes of a block, with its share of the parts of decoding's attention."""
        return self.block_bytes + self._part_bytes() // PIECE_BLOCKS

    def _part_bytes(self) -> int:
        """Return bytes of what a token's heads have of one piece: mixed values, maximum and sum."""
        return 4 * self.config.num_heads * (self.config.head_dim + 2)

    def _longest(self) -> int:
        return -(-self.config.max_context // (BLOCK_SIZE * PIECE_BLOCKS))


def sizes_of(memory: CardMemory, need: ModelNeed, wanted: WantedSizes) -> RunnerSizes:
    """Return sizes that a device has room for; what is wanted stays. Raises ConfigError where that
    is too much, or too little is left for KV."""
    room = memory.free - memory.total // _RESERVED
    tokens = wanted.max_step_tokens or next(
        (n for n in _STEP_TOKENS if need.step_bytes(n) * _SCRATCH <= room), _STEP_TOKENS[-1]
    )

    def blocks(streams: int) -> int:
        left = room - need.step_bytes(tokens) - need.streams_bytes(streams)
        return left // need.kept_bytes() - 1  # padding writes to one more

    streams = wanted.max_samples or next(
        (n for n in _STREAMS if blocks(n) >= n * _STREAM_BLOCKS), _STREAMS[-1]
    )
    most = blocks(streams)
    least = wanted.num_blocks or _LEAST_BLOCKS
    if most < least:
        raise ConfigError(
            f"{least} blocks of KV for {streams} streams, in steps of {tokens} tokens, need "
            f"{(least - most) * need.kept_bytes() / (1 << 30):.2f} GiB more than the device has "
            "free: fewer blocks, streams or tokens of a step would fit"
        )
    return RunnerSizes(
        num_blocks=wanted.num_blocks or most, max_step_tokens=tokens, max_samples=streams
    )


def row_buckets(largest: int) -> list[int]:
    """Return 1, 2, 4 … 32, then multiples of 32, up to what holds `largest` rows."""
    small = [1 << i for i in range(6)]
    above = range(2 * _ROW_STEP, largest + _ROW_STEP, _ROW_STEP)
    return [n for n in small if n < 2 * largest] + list(above)
