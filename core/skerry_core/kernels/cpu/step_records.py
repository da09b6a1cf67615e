"""What a compiled step works on: records of sizes and addresses, shared with threads in C's way.

Threads live inside compiled code between steps, so they cannot be handed Python objects. Records:

    step     one, shared: the model, the buffers, the batch at hand
    thread   one per thread: which it is, and scratch memory of its own
    layer    one per layer: what it has unlike its neighbours
    view     one per window of attention: what layers with it share
    matrix   one per packed matrix
"""

from __future__ import annotations

import numpy as np
from numba import from_dtype, types

from skerry_core.kernels.cpu.numba_sampling import SamplingArrays
from skerry_core.kernels.cpu.sampling_bins import SamplerScratch
from skerry_core.kernels.simd.linking import TARGET

# Phases of a step whose items threads claim: six in each layer, two after the last.
PROJECT, ATTEND, OUTPUT, ROUTE, FEED_FORWARD, DOWN = range(6)
LOGITS, SAMPLE = range(2)
PHASES_PER_LAYER, EXTRA_PHASES = 6, 2

MAX_TILE_TOKENS = 32  # of an attention tile

TILE = np.dtype(  # tokens that attend together; see `attention_tiles`
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
LAYER_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
ROUTER = len(LAYER_MATRICES)  # the last matrix of a layer with experts, whose gates, ups and downs
MATRICES_PER_LAYER = ROUTER + 1  # are one below the other
LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            "rope",  # which of `rope_tables`; -1: nothing is rotated
            "view_index",
            "has_experts",
            # Which of `norms`, before and after each branch; -1: none.
            "attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm",
        )
    ]
)  # fmt: skip
VIEW = np.dtype(
    [
        (name, np.int64)
        for name in (
            "window",  # tokens that a token sees, itself included
            "order",  # i32[T]  tokens in the order of tiles
            "tiles",  # TILE[T]
            "tasks",  # TASK[T + most_parts]
            "num_tasks", "visits",  # each visit reads a block
        )
    ]
)  # fmt: skip
NO_NORM, HEAD_NORM, WHOLE_NORM = range(3)  # of q and k


SLICE_ROWS = 32  # rows of an item of the output, feed-forward and down phases
WIDE_ROWS = 128  # the same where tokens are many, which a core reads for each item
CHUNK_TOKENS = 60  # of an item, that are multiplied, activated and quantised while they are cached
EXPERT_ROWS = 128  # rows of an item of experts' phases
EXPERT_TOKENS = 64  # of one expert, that are gathered together
PRIVATE_TOKENS = 4  # up to here each thread norms every token itself, which spares a barrier

_SIZES = (
    "num_threads", "num_layers", "hidden_size", "intermediate_size",
    "num_heads", "num_kv_heads", "head_dim", "vocab_size",
    "logits_stride", "kv_block_stride",  # in elements
    "num_tokens", "num_rows", "table_width", "num_samples", "num_history", "num_biases",
    "mask_words", "num_top",
    "rope_positions",  # that `rope_tables` have rows for
    "num_views", "rotary_dim", "qk_norm", "norms_after", "activation",
    "num_norms", "num_experts", "used_experts", "expert_width", "weighs_chosen", "scores_stride",
    "most_parts", "most_partials",  # room for tiles in parts
)  # fmt: skip
_MODEL = (
    "layers",  # LAYER[L]
    "matrices",  # MATRIX[L, MATRICES_PER_LAYER] in the order of `LAYER_MATRICES`, and a router
    "embedding",  # MATRIX; 0: of a stage that is not first
    "head",  # MATRIX; 0: of a stage that is not last
    "norms",  # f32[N, hidden]  see LAYER; the last one at the end
    "biases",  # f32[L, (H + 2 Hkv) * D]; 0: none
    "output_biases",  # f32[L, hidden]; 0: none
    "head_norms",  # f32[L, 2, D] of each head of q and of k, or f32[L, (H + Hkv) * D]; 0: none
    "sinks",  # f32[L, H]; 0: none
    "router_biases",  # f32[L, E]; 0: none
    "gate_biases",
    "up_biases",  # f32[L, E, width] of experts; 0: none
    "down_biases",  # f32[L, E, hidden]; 0: none
    "rope_tables",  # f32[R, rope_positions, 2, rotary_dim / 2]  cosines and sines
)
_BUFFERS = (  # T = the most tokens of a step
    "kv",  # u16[blocks, L, 2, Hkv, 64 * D]  f16 bits; K as [D, 64], V as [64, D]
    "hidden",  # f32[T, hidden]
    "qkv",  # f32[T, (H + 2 Hkv) * D]
    "attended",  # f32[T, H * D]
    "activated",  # f32[W]  what a down matrix of floats multiplies; 0: none is
    "normed",  # f32[T, hidden]
    "quants",  # i8[T, max(hidden, H * D)]
    "headers",  # u8[T, max(hidden, H * D) / 32 * HEADER_BYTES]
    "branch",  # f32[T, hidden]  what a branch adds, to be normed; 0: no branch is
    "wide_quants",  # i8[W], of rows of the intermediate size, or of an expert's: T, or k T
    "wide_headers",  # u8[W / 32 * HEADER_BYTES]
    "router_scores",  # f32[T, scores_stride]
    "chosen",  # i32[T, k]  experts of each token
    "shares",  # f32[T, k]
    "expert_starts",  # i32[E + 1]  first pair of each expert
    "busy_experts",  # i32[1 + E]  how many have tokens, and which
    "pair_tokens",  # i32[k T]  token of each pair with an expert, in the order of experts
    "token_pairs",  # i32[T, k]
    "expert_rows",  # f32[k T, hidden]  what an expert gives for a pair
    "logits",  # f32[S, logits_stride]
    "token_rows",  # i32[T]  the row of each token
    "placed",  # i32[T]  rows that have a tile
    "views",  # VIEW[num_views]
    "finished_parts",  # i64[T, Hkv]  tasks done of a tile in parts; 0 between phases
    "partials",  # f32[most_partials, D]
    "partial_peaks",  # f32[most_partials, 2]
    "counters",  # i64[L * PHASES_PER_LAYER + EXTRA_PHASES]  items claimed of each phase
    "sync",  # see `threads`
)
_KERNELS = (
    "matmul", "attend_block", "sample_row",
    "prepare", "divide_attention", "norm", "project", "attend", "add_output", "finish_branch",
    "feed_forward", "add_down", "route", "choose_experts", "expert_feed_forward", "expert_down",
    "add_experts", "compute_logits", "sample",
)  # fmt: skip
BATCH_ARRAYS = ("token_ids", "positions", "query_start", "block_tables", "sample_tokens")
STEP_ARRAYS = (  # what changes with every step: the batch, its sampling, where results go
    *BATCH_ARRAYS,
    *(f"sampling_{name}" for name in SamplingArrays._fields),
    *("out_token_ids", "out_logprobs", "out_top_ids", "out_top_logprobs"),
)
_SCRATCH = (  # Q = MAX_TILE_TOKENS * H / Hkv queries of an attention task
    "products",  # f32[2, CHUNK_TOKENS, WIDE_ROWS], or f32[2, EXPERT_TOKENS, EXPERT_ROWS]
    "gathered_floats",  # f32[EXPERT_TOKENS, hidden]
    "gathered_quants",  # i8[EXPERT_TOKENS, hidden]
    "gathered_headers",  # u8[EXPERT_TOKENS, hidden / 32 * HEADER_BYTES]
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

STEP_DTYPE = np.dtype(
    [
        *((name, np.int64) for name in (*_SIZES, *_MODEL, *_BUFFERS, *_KERNELS, *STEP_ARRAYS)),
        ("eps", np.float32),
        ("query_scale", np.float32),
        ("score_cap", np.float32),  # 0: none, as the next
        ("logit_cap", np.float32),
        ("embedding_scale", np.float32),
        ("residual_scale", np.float32),  # of what branches add
        ("logit_scale", np.float32),
    ],
    align=True,
)
THREAD_DTYPE = np.dtype([(name, np.int64) for name in ("index", *_SCRATCH, *_SAMPLER)], align=True)
PHASE = (TARGET, from_dtype(STEP_DTYPE), from_dtype(THREAD_DTYPE), types.int64)
"""Argument types of every phase: target, step, thread, layer (or what else the phase counts)."""
