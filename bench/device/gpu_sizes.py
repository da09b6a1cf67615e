"""Sizes of what `bench.gpu` measures: on a device, and dry, to see that all of it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bench.subjects.public_shapes import PUBLIC_SHAPES
from skerry_core.config import LayerConfig, ModelConfig

TINY = ModelConfig(
    architecture="llama", layers=(LayerConfig(),), hidden_size=32, intermediate_size=64,
    num_heads=2, num_kv_heads=1, head_dim=16, vocab_size=64, max_context=256, tied_embeddings=False,
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """What is measured at which size; tokens unless said otherwise."""

    model: ModelConfig
    dtype: torch.dtype
    context: int
    batches: tuple[int, ...]  # rows that decode
    chain: int  # steps of them, one after the other
    prefill: int
    streams: int
    stream_tokens: int  # of each stream's prompt and answer, at most
    requests: int  # of all streams, one after the other
    profiled_steps: int  # of them
    short_context: int  # of all streams but one
    tail_context: int  # of that one
    hand_over: int
    loaded: ModelConfig  # from a file
    long_rows: int
    long_context: int
    copy_bytes: int
    product: int  # rows and columns of the matrices
    product_rows: tuple[int, ...]  # of cuBLAS's products
    warm_ups: int  # runs that do not count
    rounds: int
    trials: int  # of a candidate of a sweep
    repeats: int  # of a short kernel, in a round: what the host adds to one is not its own


FULL = Sizes(
    model=replace(PUBLIC_SHAPES["llama-3.1-8b"], max_context=16_384), dtype=torch.bfloat16,
    context=1000, batches=(1, 64), chain=20, prefill=8192, streams=200, stream_tokens=1024,
    requests=1600, profiled_steps=100, short_context=500, tail_context=100_000, hand_over=4096,
    loaded=replace(PUBLIC_SHAPES["llama-3.2-1b"], max_context=4096),
    long_rows=16, long_context=32_768, copy_bytes=4 << 30, product=8192,
    product_rows=(1, 16, 64, 200, 8192), warm_ups=2, rounds=7, trials=50, repeats=10,
)  # fmt: skip
DRY = Sizes(
    model=TINY, dtype=torch.float32, context=70, batches=(1, 2), chain=2, prefill=4, streams=2,
    stream_tokens=2, requests=5, profiled_steps=2, short_context=20, tail_context=250,
    hand_over=128, loaded=TINY, long_rows=1, long_context=300,
    copy_bytes=1 << 16, product=32, product_rows=(1, 4), warm_ups=1, rounds=1, trials=2, repeats=1,
)  # fmt: skip
