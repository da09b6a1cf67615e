"""What a compiled step works on: records of sizes and addresses, shared with threads in C's way.

Threads live inside compiled code between steps, so they cannot be handed Python objects. A `Plan`
owns every array that its records point to; the records are:

    plan     one, shared: the model, the buffers, the batch at hand
    thread   one per thread: which it is, and scratch memory of its own
    matrix   one per packed matrix
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from skerry_core.batch import Batch, StepResult
from skerry_core.blocks import blocks_for
from skerry_core.config import BLOCK_SIZE, ModelConfig
from skerry_core.kernels.cpu.layout import BLOCK, PackedLayout, WeightFormat
from skerry_core.kernels.cpu.matmul import MATRIX
from skerry_core.kernels.cpu.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.cpu.numba_sampling import (
    SamplerScratch,
    SamplingArrays,
    sampler_scratch,
    sampling_arrays,
)
from skerry_core.kernels.simd.aliases import Address, Array, Float32, Int64
from skerry_core.kernels.simd.linking import TARGET

# Phases of a step whose items threads claim: five in each layer, two after the last.
PROJECT, ATTEND, OUTPUT, FEED_FORWARD, DOWN = range(5)
LOGITS, SAMPLE = range(2)
PHASES_PER_LAYER, EXTRA_PHASES = 5, 2

MAX_TILE_TOKENS = 32  # of an attention tile
_PARTS_PER_THREAD = 16  # of attention tiles, at most
_LEAST_PARTIALS = 4096  # that tiles in parts may keep

TILE = np.dtype(  # tokens that attend together; see `attend_step`
    [
        (name, np.int64)
        for name in (
            "first", "count",  # its tokens in `order`
            "begin", "shared",  # blocks [begin, shared) that they read together
            "visits", "cost",
            "partials",  # of all visits with one KV head
            "parts", "kept",  # tasks it is divided into; its first partial, when several
        )
    ]
)  # fmt: skip
TASK = np.dtype([(name, np.int64) for name in ("tile", "first", "last")])  # visits [first, last)

SLICE_ROWS = 32  # rows of an item of the output, feed-forward and down phases
PRIVATE_TOKENS = 4  # up to here each thread norms every token itself, which spares a barrier

_SIZES = (
    "num_threads", "num_layers", "hidden_size", "intermediate_size",
    "num_heads", "num_kv_heads", "head_dim", "vocab_size",
    "logits_stride", "kv_block_stride",  # in elements
    "num_tokens", "num_rows", "table_width", "num_samples", "num_history", "num_biases",
    "mask_words", "num_top",
    "window",  # tokens that a token sees, itself included
    "most_parts", "most_partials",  # room for tiles in parts
)  # fmt: skip
_MODEL = (
    "layers",  # MATRIX[L, 7] in the order of `llama.LAYER_MATRICES`
    "embedding",  # MATRIX
    "head",  # MATRIX
    "norms",  # f32[2 L + 1, hidden]  before attention, before feed-forward, …, at the end
    "biases",  # f32[L, (H + 2 Hkv) * D]; 0: none
    "head_norms",  # f32[L, 2, D]  of each head of q and of k; 0: none
    "cosines",  # f32[max_context, D / 2]
    "sines",
)
_BUFFERS = (  # T = the most tokens of a step
    "kv",  # u16[blocks, L, 2, Hkv, 64 * D]  f16 bits; K as [D, 64], V as [64, D]
    "hidden",  # f32[T, hidden]
    "qkv",  # f32[T, (H + 2 Hkv) * D]
    "attended",  # f32[T, H * D]
    "activated",  # f32[T, intermediate]  what a down matrix of floats multiplies; 0: none is
    "normed",  # f32[T, hidden]
    "quants",  # i8[T, max(hidden, H * D)]
    "headers",  # u8[T, max(hidden, H * D) / 32 * HEADER_BYTES]
    "wide_quants",  # i8[T, intermediate]
    "wide_headers",  # u8[T, intermediate / 32 * HEADER_BYTES]
    "logits",  # f32[S, logits_stride]
    "token_rows",  # i32[T]  the row of each token
    "placed",  # i32[T]  rows that have a tile
    "order",  # i32[T]  tokens in the order of tiles
    "tiles",  # TILE[T]
    "tasks",  # TASK[T + most_parts]
    "attention_totals",  # i64[2]  tasks; visits, each of which reads a block
    "finished_parts",  # i64[T, Hkv]  tasks done of a tile in parts; 0 between phases
    "partials",  # f32[most_partials, D]
    "partial_peaks",  # f32[most_partials, 2]
    "counters",  # i64[L * PHASES_PER_LAYER + EXTRA_PHASES]  items claimed of each phase
    "sync",  # see `threads`
)
_KERNELS = (
    "matmul", "attend_block", "sample_row",
    "prepare", "plan_attention", "norm", "project", "attend", "add_output", "feed_forward",
    "add_down", "compute_logits", "sample",
)  # fmt: skip
_BATCH = ("token_ids", "positions", "query_start", "block_tables", "sample_tokens")
_RESULT = ("out_token_ids", "out_logprobs", "out_top_ids", "out_top_logprobs")
_SAMPLING = tuple(f"sampling_{name}" for name in SamplingArrays._fields)
_SCRATCH = (  # Q = MAX_TILE_TOKENS * H / Hkv queries of an attention task
    "products",  # f32[2, T, SLICE_ROWS]
    "normed",  # f32[PRIVATE_TOKENS, hidden]
    "quants",  # i8[PRIVATE_TOKENS, hidden]
    "headers",  # u8[PRIVATE_TOKENS, hidden / 32 * HEADER_BYTES]
    "half",  # u16[D]
    "queries",  # f32[Q, D]
    "scores",  # f32[Q, 64]
    "seen",  # i64[MAX_TILE_TOKENS, 2]
    "widened",  # f32[64 * D]
    "partial",  # f32[Q, D]
    "partial_peaks",  # f32[Q, 2]
    "state",  # f32[Q, D]
    "state_peaks",  # f32[Q, 2]
)
_SAMPLER = tuple(f"sampler_{name}" for name in SamplerScratch._fields)

PLAN = np.dtype(
    [
        *(
            (name, np.int64)
            for name in (*_SIZES, *_MODEL, *_BUFFERS, *_KERNELS, *_BATCH, *_SAMPLING, *_RESULT)
        ),
        ("eps", np.float32),
        ("query_scale", np.float32),  # 1 / sqrt(head_dim)
    ],
    align=True,
)
THREAD = np.dtype([(name, np.int64) for name in ("index", *_SCRATCH, *_SAMPLER)], align=True)
PHASE = (TARGET, from_dtype(PLAN), from_dtype(THREAD), types.int64)
"""Argument types of every phase: target, plan, thread, layer (or what else the phase counts)."""


def address(array: Array) -> Address:
    """Where an array's data begins."""
    start: int = array.__array_interface__["data"][0]
    return start


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros that begin a cache line; their pages come from the system when first touched."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -address(raw) % 64
    return raw[start : start + size].view(dtype).reshape(shape)


class ModelArrays(NamedTuple):
    """Weights in the form that the plan points to; see `_MODEL`."""

    layers: Array
    embedding: Array
    head: Array
    norms: Float32
    biases: Float32
    head_norms: Float32
    cosines: Float32
    sines: Float32


def matrix_record(layout: PackedLayout, data: Address) -> Array:
    """`MATRIX[1]` of a packed matrix at an address."""
    record = np.zeros(1, MATRIX)
    record["address"] = data
    record["format"] = layout.format
    record["num_groups"] = layout.num_groups
    record["num_steps"] = layout.num_steps
    record["scale_bytes"] = layout.scale_bytes
    record["group_bytes"] = layout.group_bytes
    return record


@dataclass(slots=True)
class Plan:
    """Owns the records and all memory they point to."""

    record: Any  # PLAN
    threads: list[Any]  # THREAD, one per thread
    kv: NDArray[np.uint16]
    logits: Float32
    counters: Int64
    attention_totals: Int64  # see `_BUFFERS`
    owned: list[Any] = field(repr=False)
    batch_arrays: list[Any] = field(default_factory=list, repr=False)

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        model: ModelArrays,
        sync: Int64,
        *,
        num_threads: int,
        num_blocks: int,
        max_step_tokens: int,
        max_samples: int,
    ) -> Plan:
        down = model.layers["format"].reshape(config.num_layers, -1)[:, -1]
        buffers = _allocate_buffers(
            config,
            num_blocks,
            max_step_tokens,
            max_samples,
            has_float_down=bool((down <= WeightFormat.F16).any()),
        )
        buffers |= _allocate_attention(config, max_step_tokens, num_threads)
        buffers["sync"] = sync
        plan = np.zeros(1, PLAN)
        for name in ("num_layers", "hidden_size", "intermediate_size", "num_heads"):
            plan[name] = getattr(config, name)
        for name in ("num_kv_heads", "head_dim", "vocab_size"):
            plan[name] = getattr(config, name)
        plan["num_threads"] = num_threads
        plan["logits_stride"] = buffers["logits"].shape[1]
        plan["kv_block_stride"] = buffers["kv"][0].size
        plan["window"] = config.sliding_window or config.max_context
        plan["most_parts"] = len(buffers["tasks"]) - max_step_tokens
        plan["most_partials"] = len(buffers["partials"])
        plan["eps"] = config.rms_norm_eps
        plan["query_scale"] = np.float32(1.0) / np.sqrt(np.float32(config.head_dim))
        for name, array in (*model._asdict().items(), *buffers.items()):
            plan[name] = address(array) if array.size else 0
        threads, scratch = _allocate_threads(config, max_step_tokens, num_threads)
        return cls(
            record=plan[0],
            threads=threads,
            kv=buffers["kv"],
            logits=buffers["logits"],
            counters=buffers["counters"],
            attention_totals=buffers["attention_totals"],
            owned=[plan, model, buffers, scratch],
        )

    def set_batch(self, batch: Batch) -> StepResult:
        """Point the plan at a batch and at a new result, which the next step fills."""
        sampling = sampling_arrays(batch.sampling)
        samples = batch.num_samples
        num_top = max(0, int(sampling.num_logprobs.max(initial=0)))
        result = StepResult(
            token_ids=np.empty(samples, np.int32),
            logprobs=np.empty(samples, np.float32),
            top_ids=np.empty((samples, num_top), np.int32),
            top_logprobs=np.empty((samples, num_top), np.float32),
        )
        arrays: list[Array] = [
            np.ascontiguousarray(getattr(batch, name), np.int32) for name in _BATCH
        ]
        arrays += sampling
        arrays += [result.token_ids, result.logprobs, result.top_ids, result.top_logprobs]
        record = self.record
        for name, array in zip((*_BATCH, *_SAMPLING, *_RESULT), arrays, strict=True):
            record[name] = address(array)
        record["num_tokens"] = batch.num_tokens
        record["num_rows"] = batch.num_rows
        record["table_width"] = batch.block_tables.shape[1]
        record["num_samples"] = samples
        record["num_history"] = len(sampling.history_ids)
        record["num_biases"] = len(sampling.bias_ids)
        record["mask_words"] = sampling.allowed.shape[1]
        record["num_top"] = num_top
        self.counters[:] = 0
        self.batch_arrays = arrays
        return result


def _allocate_buffers(
    config: ModelConfig,
    num_blocks: int,
    max_step_tokens: int,
    max_samples: int,
    *,
    has_float_down: bool,
) -> dict[str, Array]:
    tokens, hidden, wide = max_step_tokens, config.hidden_size, config.intermediate_size
    rows = max(tokens, max_samples)
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    widest = max(hidden, queries)
    padded_vocabulary = -(-config.vocab_size // BLOCK) * BLOCK
    page = (config.num_layers, 2, config.num_kv_heads, config.head_dim * BLOCK_SIZE)
    phases = config.num_layers * PHASES_PER_LAYER + EXTRA_PHASES
    return {
        "kv": aligned_zeros((num_blocks, *page), np.uint16),
        "hidden": aligned_zeros((tokens, hidden), np.float32),
        "qkv": aligned_zeros((tokens, queries + 2 * keys), np.float32),
        "attended": aligned_zeros((tokens, queries), np.float32),
        "activated": aligned_zeros((tokens, wide if has_float_down else 0), np.float32),
        "normed": aligned_zeros((rows, hidden), np.float32),
        "quants": aligned_zeros((rows, widest), np.int8),
        "headers": aligned_zeros((rows, widest // BLOCK * HEADER_BYTES), np.uint8),
        "wide_quants": aligned_zeros((tokens, wide), np.int8),
        "wide_headers": aligned_zeros((tokens, wide // BLOCK * HEADER_BYTES), np.uint8),
        "logits": aligned_zeros((max_samples, padded_vocabulary), np.float32),
        "token_rows": aligned_zeros((tokens,), np.int32),
        "counters": aligned_zeros((phases,), np.int64),
    }


def _allocate_attention(config: ModelConfig, tokens: int, threads: int) -> dict[str, Array]:
    """Tiles, tasks, and room for the partials of at least one token with the longest context."""
    blocks = blocks_for(config.max_context)
    partials = max(_LEAST_PARTIALS, config.num_heads * blocks)
    return {
        "placed": aligned_zeros((tokens,), np.int32),
        "order": aligned_zeros((tokens,), np.int32),
        "tiles": aligned_zeros((tokens,), TILE),
        "tasks": aligned_zeros((tokens + threads * _PARTS_PER_THREAD,), TASK),
        "attention_totals": aligned_zeros((2,), np.int64),
        "finished_parts": aligned_zeros((tokens, config.num_kv_heads), np.int64),
        "partials": aligned_zeros((partials, config.head_dim), np.float32),
        "partial_peaks": aligned_zeros((partials, 2), np.float32),
    }


def _allocate_threads(
    config: ModelConfig, tokens: int, num_threads: int
) -> tuple[list[Any], list[Any]]:
    """Records of the threads, and the memory that they point to."""
    hidden, dim = config.hidden_size, config.head_dim
    queries = MAX_TILE_TOKENS * config.num_heads // config.num_kv_heads
    records = np.zeros(num_threads, THREAD)
    memory: list[Any] = [records]
    for index in range(num_threads):
        scratch = {
            "products": aligned_zeros((2, tokens, SLICE_ROWS), np.float32),
            "normed": aligned_zeros((PRIVATE_TOKENS, hidden), np.float32),
            "quants": aligned_zeros((PRIVATE_TOKENS, hidden), np.int8),
            "headers": aligned_zeros((PRIVATE_TOKENS, hidden // BLOCK * HEADER_BYTES), np.uint8),
            "half": aligned_zeros((dim,), np.uint16),
            "queries": aligned_zeros((queries, dim), np.float32),
            "scores": aligned_zeros((queries, BLOCK_SIZE), np.float32),
            "seen": aligned_zeros((MAX_TILE_TOKENS, 2), np.int64),
            "widened": aligned_zeros((BLOCK_SIZE, dim), np.float32),
            "partial": aligned_zeros((queries, dim), np.float32),
            "partial_peaks": aligned_zeros((queries, 2), np.float32),
            "state": aligned_zeros((queries, dim), np.float32),
            "state_peaks": aligned_zeros((queries, 2), np.float32),
        }
        sampler = sampler_scratch(config.vocab_size)._asdict()
        scratch |= {f"sampler_{name}": array for name, array in sampler.items()}
        records[index]["index"] = index
        for name, array in scratch.items():
            records[index][name] = address(array)
        memory.append(scratch)
    return [records[index] for index in range(num_threads)], memory
