"""The largest logit of each row, and what sampling makes of logits before all else."""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from skerry_core.kernels.triton.triton_math import sortable
from skerry_core.kernels.triton.triton_search import logit_of
from skerry_core.sampling import MAX_LOGIT

_MAX_LOGIT: tl.constexpr = tl.constexpr(float(MAX_LOGIT))
_HIGHEST_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_LEAST_PEAK: tl.constexpr = tl.constexpr(-(1 << 63))


@triton.jit
def find_peaks(logits, adjusted, peaks, vocab_size, CLEANS: tl.constexpr, SLICE: tl.constexpr):
    """Find a slice's largest logit and the lowest id that has it: one number, the key above.

    Of logits that were just multiplied, leave in `adjusted` what `sampling` makes of them first.
    """
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = piece * SLICE + tl.arange(0, SLICE)
    is_token = ids < vocab_size
    x = tl.load(logits + row * vocab_size + ids, mask=is_token, other=float("-inf")).to(tl.float32)
    if CLEANS:
        x = tl.where(x == x, tl.minimum(x, _MAX_LOGIT), float("-inf"))
        tl.store(adjusted + row * vocab_size + ids, x, mask=is_token)
    pairs = (sortable(x).to(tl.int64) << 32) + (-ids + _HIGHEST_ID)
    peak = tl.max(tl.where(is_token, pairs, _LEAST_PEAK), axis=0)
    tl.store(peaks + row * tl.num_programs(1) + piece, peak)


@triton.jit
def take_peaks(peaks, targets, largests, chosen, slices, SLICES: tl.constexpr):
    """Take the largest logit of a row, and its token, as if it were greedy; or its target, and
    leave nothing to choose."""
    row, piece = tl.program_id(0), tl.arange(0, SLICES)
    peak = tl.max(
        tl.load(peaks + row * slices + piece, mask=piece < slices, other=_LEAST_PEAK), axis=0
    )
    largest, target = logit_of(peak >> 32), tl.load(targets + row).to(tl.int64)
    tl.store(largests + row, tl.where(target >= 0, float("-inf"), largest))
    token = tl.where(largest == float("-inf"), -1, -(peak & 0xFFFFFFFF) + _HIGHEST_ID)
    tl.store(chosen + row, tl.where(target >= 0, target, token))
