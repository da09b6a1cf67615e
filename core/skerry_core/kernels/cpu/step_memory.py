"""The memory of a step: the arrays that its records point to, allocated once and kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.blocks import blocks_for
from skerry_core.config import BLOCK_SIZE, ExpertsConfig, ModelConfig
from skerry_core.kernels.activations import ACTIVATIONS
from skerry_core.kernels.cpu.numba_sampling import SamplingArrays
from skerry_core.kernels.cpu.sampling_bins import sampler_scratch
from skerry_core.kernels.cpu.step_records import (
    BATCH_ARRAYS,
    CHUNK_TOKENS,
    EXPERT_ROWS,
    EXPERT_TOKENS,
    EXTRA_PHASES,
    HEAD_NORM,
    LAYER_MATRICES,
    MAX_TILE_TOKENS,
    NO_NORM,
    PHASES_PER_LAYER,
    PRIVATE_TOKENS,
    SLICE_ROWS,
    STEP_ARRAYS,
    STEP_DTYPE,
    TASK,
    THREAD_DTYPE,
    TILE,
    VIEW,
    WHOLE_NORM,
    WIDE_ROWS,
)
from skerry_core.kernels.matmul.layout import BLOCK, WeightFormat
from skerry_core.kernels.matmul.matmul_tiles import HEADER_BYTES
from skerry_core.kernels.simd.aliases import Array, Float32, Int64
from skerry_core.kernels.simd.memory import address, aligned_zeros

_PARTS_PER_THREAD = 16  # of attention tiles, at most
_LEAST_PARTIALS = 4096  # that tiles in parts may keep


class ModelArrays(NamedTuple):
    """Weights in the form that the step points to; see `step_records`."""

    layers: Array
    matrices: Array
    embedding: Array
    head: Array
    norms: Float32
    biases: Float32
    output_biases: Float32
    head_norms: Float32
    sinks: Float32
    router_biases: Float32
    gate_biases: Float32
    up_biases: Float32
    down_biases: Float32
    rope_tables: Float32


@dataclass(slots=True)
class StepMemory:
    """Owns the records and all memory they point to."""

    record: Any  # STEP_DTYPE
    threads: list[Any]  # THREAD_DTYPE, one per thread
    kv: NDArray[np.uint16]
    hidden: Float32  # [T, hidden]
    logits: Float32
    counters: Int64
    views: Array  # VIEW[num_views]
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
    ) -> StepMemory:
        down = model.matrices["format"].reshape(config.num_layers, -1)[
            :, LAYER_MATRICES.index("ffn_down")
        ]
        buffers = _allocate_buffers(
            config,
            num_blocks,
            max_step_tokens,
            max_samples,
            has_float_down=bool((down <= WeightFormat.F16).any()),
        )
        views, attention = _allocate_views(config, max_step_tokens, num_threads)
        buffers |= _allocate_partials(config, max_step_tokens)
        buffers |= {"sync": sync, "views": views}
        step = np.zeros(1, STEP_DTYPE)
        for name, value in _sizes(config).items():
            step[name] = value
        step["num_threads"] = num_threads
        step["num_views"] = len(views)
        step["num_norms"] = len(model.norms)
        step["rope_positions"] = model.rope_tables.shape[1] if model.rope_tables.size else 0
        step["logits_stride"] = buffers["logits"].shape[1]
        step["scores_stride"] = buffers["router_scores"].shape[1]
        step["kv_block_stride"] = buffers["kv"][0].size
        step["most_parts"] = num_threads * _PARTS_PER_THREAD
        step["most_partials"] = len(buffers["partials"])
        for name, array in (*model._asdict().items(), *buffers.items()):
            step[name] = address(array) if array.size else 0
        threads, scratch = _allocate_threads(config, max_step_tokens, num_threads)
        return cls(
            record=step[0],
            threads=threads,
            kv=buffers["kv"],
            hidden=buffers["hidden"],
            logits=buffers["logits"],
            counters=buffers["counters"],
            views=views,
            owned=[step, model, buffers, scratch, attention],
        )

    def set_batch(self, batch: ForwardBatch) -> StepResult:
        """Point the step at a batch and at a new result, which the next step fills."""
        sampling = batch.sampling
        samples = len(batch.sample_tokens)
        num_top = max(0, int(sampling.samples["num_logprobs"].max(initial=0)))
        result = StepResult(
            token_ids=np.empty(samples, np.int32),
            logprobs=np.empty(samples, np.float32),
            top_ids=np.empty((samples, num_top), np.int32),
            top_logprobs=np.empty((samples, num_top), np.float32),
        )
        arrays: list[Array] = [
            np.ascontiguousarray(getattr(batch, name), np.int32) for name in BATCH_ARRAYS
        ]
        arrays += [np.ascontiguousarray(getattr(sampling, name)) for name in SamplingArrays._fields]
        arrays += [result.token_ids, result.logprobs, result.top_ids, result.top_logprobs]
        record = self.record
        for name, array in zip(STEP_ARRAYS, arrays, strict=True):
            record[name] = array.__array_interface__["data"][0]  # `address`, without the call
        record["num_tokens"] = len(batch.token_ids)
        record["num_rows"] = len(batch.query_start) - 1
        record["table_width"] = batch.block_tables.shape[1]
        record["num_samples"] = samples
        record["num_history"] = len(sampling.history_ids)
        record["num_biases"] = len(sampling.bias_ids)
        record["mask_words"] = sampling.allowed.shape[1]
        record["num_top"] = num_top
        self.counters[:] = 0
        self.batch_arrays = arrays
        return result


def _sizes(config: ModelConfig) -> dict[str, float]:
    """Return what a step's record says of a model itself."""
    experts = config.experts
    norms_of_heads = {None: NO_NORM, "head": HEAD_NORM, "whole": WHOLE_NORM}
    scale = config.attention_scale
    if scale is None:
        scale = np.float32(1.0) / np.sqrt(np.float32(config.head_dim))
    names = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
             "head_dim", "vocab_size", "norms_after", "embedding_scale",
             "residual_scale", "logit_scale")  # fmt: skip
    return {name: getattr(config, name) for name in names} | {
        "rotary_dim": config.rotated,
        "qk_norm": norms_of_heads[config.qk_norm],
        "activation": ACTIVATIONS.index(config.activation),
        "num_experts": 0 if experts is None else experts.count,
        "used_experts": 0 if experts is None else experts.used,
        "expert_width": 0 if experts is None else experts.width,
        "weighs_chosen": experts is not None and experts.weighs_chosen,
        "eps": config.rms_norm_eps,
        "query_scale": scale,
        "score_cap": config.score_cap or 0.0,
        "logit_cap": config.logit_cap or 0.0,
    }


def _allocate_buffers(
    config: ModelConfig,
    num_blocks: int,
    max_step_tokens: int,
    max_samples: int,
    *,
    has_float_down: bool,
) -> dict[str, Array]:
    tokens, hidden = max_step_tokens, config.hidden_size
    rows = max(tokens, max_samples)
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    widest = max(hidden, queries)
    padded_vocabulary = -(-config.vocab_size // BLOCK) * BLOCK
    page = (config.num_layers, 2, config.num_kv_heads, config.head_dim * BLOCK_SIZE)
    phases = config.num_layers * PHASES_PER_LAYER + EXTRA_PHASES
    experts = config.experts or ExpertsConfig(count=1, used=1, width=0)
    is_sparse = config.experts is not None
    pairs = experts.used * tokens if is_sparse else 0
    wide = max(tokens * config.intermediate_size, pairs * experts.width)
    return {
        "kv": aligned_zeros((num_blocks, *page), np.uint16),
        "hidden": aligned_zeros((tokens, hidden), np.float32),
        "qkv": aligned_zeros((tokens, queries + 2 * keys), np.float32),
        "attended": aligned_zeros((tokens, queries), np.float32),
        "activated": aligned_zeros((wide if has_float_down else 0,), np.float32),
        "normed": aligned_zeros((rows, hidden), np.float32),
        "quants": aligned_zeros((rows, widest), np.int8),
        "headers": aligned_zeros((rows, widest // BLOCK * HEADER_BYTES), np.uint8),
        "branch": aligned_zeros((tokens if config.norms_after else 0, hidden), np.float32),
        "wide_quants": aligned_zeros((wide,), np.int8),
        "wide_headers": aligned_zeros((wide // BLOCK * HEADER_BYTES,), np.uint8),
        "router_scores": aligned_zeros(
            (tokens if is_sparse else 0, -(-experts.count // SLICE_ROWS) * SLICE_ROWS), np.float32
        ),
        "chosen": aligned_zeros((pairs,), np.int32),
        "shares": aligned_zeros((pairs,), np.float32),
        "expert_starts": aligned_zeros((experts.count + 1,), np.int32),
        "busy_experts": aligned_zeros((experts.count + 1,), np.int32),
        "pair_tokens": aligned_zeros((pairs,), np.int32),
        "token_pairs": aligned_zeros((pairs,), np.int32),
        "expert_rows": aligned_zeros((pairs, hidden), np.float32),
        "logits": aligned_zeros((max_samples, padded_vocabulary), np.float32),
        "token_rows": aligned_zeros((tokens,), np.int32),
        "counters": aligned_zeros((phases,), np.int64),
    }


def _allocate_views(config: ModelConfig, tokens: int, threads: int) -> tuple[Array, list[Array]]:
    """Allocate a record of each window, tiles and tasks; return the memory they point to too."""
    views = np.zeros(len(config.windows), VIEW)
    memory: list[Array] = []
    for index, window in enumerate(config.windows):
        arrays = {
            "order": aligned_zeros((tokens,), np.int32),
            "tiles": aligned_zeros((tokens,), TILE),
            "tasks": aligned_zeros((tokens + threads * _PARTS_PER_THREAD,), TASK),
        }
        views[index]["window"] = window or config.max_context
        for name, array in arrays.items():
            views[index][name] = address(array)
            memory.append(array)
    return views, memory


def _allocate_partials(config: ModelConfig, tokens: int) -> dict[str, Array]:
    """Allocate what all views share: partials of at least one token with the longest context."""
    blocks = blocks_for(config.max_context)
    partials = max(_LEAST_PARTIALS, config.num_heads * blocks)
    return {
        "placed": aligned_zeros((tokens,), np.int32),
        "finished_parts": aligned_zeros((tokens, config.num_kv_heads), np.int64),
        "partials": aligned_zeros((partials, config.head_dim), np.float32),
        "partial_peaks": aligned_zeros((partials, 2), np.float32),
    }


def _allocate_threads(
    config: ModelConfig, tokens: int, num_threads: int
) -> tuple[list[Any], list[Any]]:
    """Allocate records of the threads, and the memory that they point to."""
    hidden, dim = config.hidden_size, config.head_dim
    queries = MAX_TILE_TOKENS * config.num_heads // config.num_kv_heads
    gathered = EXPERT_TOKENS if config.experts is not None else 0
    products = max(CHUNK_TOKENS * WIDE_ROWS, gathered * EXPERT_ROWS)
    records = np.zeros(num_threads, THREAD_DTYPE)
    memory: list[Any] = [records]
    for index in range(num_threads):
        scratch = {
            "products": aligned_zeros((2, products), np.float32),
            "gathered_floats": aligned_zeros((gathered, hidden), np.float32),
            "gathered_quants": aligned_zeros((gathered, hidden), np.int8),
            "gathered_headers": aligned_zeros((gathered, hidden // BLOCK * HEADER_BYTES), np.uint8),
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
