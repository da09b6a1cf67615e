"""Steps 4 to 6 of `skerry_core.sampling` in Triton: no sort, nothing for the host to do.

Where `sampling` walks a sorted list, this looks for the logit at which the list would be cut:
weights are integers, so their sums are exact in any order, and tokens of one logit weigh the same.
A prefix of the list is its least logit and how many tokens of that logit belong to it, lowest ids
first. The vocabulary is read slice by slice, a program for each:

    once       the largest logit of a row, and the lowest id that has it
    once       how many tokens e^x puts into each bin, a factor of four wide, and what they weigh
    a search   the tokens of the bin in which a limit falls; one program bisects their logits

Of searches a row has those that it needs, one after the other, since each asks what the one before
left: where top_k cuts, where top_p does, and the token that is drawn.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from skerry_core.kernels.torch.torch_sampling import COUNT, DRAW, MASS
from skerry_core.kernels.triton.triton_peaks import find_peaks, take_peaks
from skerry_core.kernels.triton.triton_search import (
    bins_of,
    bounds_of,
    count_from,
    least_share,
    mass_from,
    token_at,
    uniform,
    wanted_bin,
    weigh,
    weight_of,
    weights_of,
)
from skerry_core.sampling import GREEDY_TEMPERATURE

_SLICE = 8192  # tokens of a program
_BINS = 16  # the last but one is of all that is less likely, the last of what min_p leaves out
_CHUNK = 4096  # gathered tokens that are bisected together
GATHERED = 16_384  # tokens of a bin at most that are gathered; of a larger one all are bisected

_COUNT: tl.constexpr = tl.constexpr(COUNT)
_MASS: tl.constexpr = tl.constexpr(MASS)
_DRAW: tl.constexpr = tl.constexpr(DRAW)
_NONE: tl.constexpr = tl.constexpr(-1)
_GREEDY: tl.constexpr = tl.constexpr(float(GREEDY_TEMPERATURE))


def choose(
    logits: Tensor,  # [S, V]
    temperature: Tensor,  # f32[S]
    top_p: Tensor,  # f32[S]
    top_k: Tensor,  # i32[S]  0: off
    lowest: Tensor,  # f32[S]  ln(min_p), at most 0
    seeds: Tensor,  # i64[S]  bits of the u64
    positions: Tensor,  # i64[S]
    choices: Tensor,  # i32[S]
    targets: Tensor,  # i32[S]  at least 0: what is chosen, whatever the logits are
    *,
    searches: Sequence[int] = (COUNT, MASS, DRAW),  # at least those that any sample needs
    adjusted: Tensor | None = None,  # f32[S, V]  written: the logits without NaN
    chosen: Tensor | None = None,  # i64[S]  written
) -> Tensor:
    """Choose as `sampling.choose` does: i64[S], -1 where every logit is -inf. Logits have no NaN
    and are f32, unless `adjusted` is given."""
    rows, vocab_size = logits.shape
    slices = triton.cdiv(vocab_size, _SLICE)

    def new(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=logits.device)

    if chosen is None:
        chosen = new(torch.int64)
    largest, peaks = new(torch.float32), new(torch.int64, slices)
    if not rows:
        return chosen
    padded = triton.next_power_of_2(slices)
    cleans, adjusted = adjusted is not None, logits if adjusted is None else adjusted
    find_peaks[(rows, slices)](
        logits, adjusted, peaks, vocab_size, CLEANS=cleans, SLICE=_SLICE, num_warps=8
    )
    take_peaks[(rows,)](peaks, targets, largest, chosen, slices, SLICES=padded, num_warps=1)
    if not searches:
        return chosen
    counts, masses = new(torch.int32, slices, _BINS), new(torch.int64, slices, _BINS)
    bins = new(torch.uint8, vocab_size)
    _fill_bins[(rows, slices)](
        adjusted, largest, temperature, lowest, bins, counts, masses, vocab_size,
        SLICE=_SLICE, BINS=_BINS, num_warps=8,
    )  # fmt: skip
    running, totals = (new(torch.int64, _BINS), new(torch.int64, _BINS)), new(torch.int64)
    stages, limits = new(torch.int32), new(torch.int64)
    style = top_k, top_p, seeds, positions, choices
    state = *running, totals, stages, limits
    _sum_bins[(rows,)](
        largest, temperature, *style, counts, masses, *state, slices, SLICES=padded, BINS=_BINS,
        num_warps=4,
    )  # fmt: skip
    room = min(GATHERED, vocab_size)
    found, weights = (new(torch.float32, room), new(torch.int32, room)), new(torch.int64, room)
    for search in searches:
        _gather[(rows, slices)](
            adjusted, bins, counts, *running, stages, limits, *found, vocab_size,
            SEARCH=search, ROOM=room, SLICE=_SLICE, BINS=_BINS, num_warps=8,
        )  # fmt: skip
        _settle[(rows,)](
            adjusted, largest, temperature, *style, *state, *found, weights, chosen,
            vocab_size,
            SEARCH=search, ROOM=room, CHUNK=_CHUNK, BINS=_BINS, num_warps=8,
        )  # fmt: skip
    return chosen


@triton.jit
def _fill_bins(
    adjusted, largests, temperatures, lowests, binned, counts, masses, vocab_size,
    SLICE: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Count a slice's tokens by bin, and sum their weights."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    largest, temperature = tl.load(largests + row), tl.load(temperatures + row)
    if (temperature < _GREEDY) | (largest == float("-inf")):
        return
    ids = piece * SLICE + tl.arange(0, SLICE)
    logits = tl.load(adjusted + row * vocab_size + ids, mask=ids < vocab_size, other=float("-inf"))
    bins = bins_of(logits, ids < vocab_size, largest, temperature, tl.load(lowests + row), BINS)
    tl.store(binned + row * vocab_size + ids, bins.to(tl.uint8), mask=ids < vocab_size)
    at = (row * tl.num_programs(1) + piece) * BINS
    tl.store(counts + at + tl.arange(0, BINS), tl.histogram(bins, BINS))
    weights = weights_of(logits, largest, temperature)
    for b in tl.static_range(BINS - 1):
        tl.store(masses + at + b, tl.sum(tl.where(bins == b, weights, 0), axis=0))


@triton.jit
def _sum_bins(
    largests, temperatures, top_ks, top_ps, seeds, positions, choices, counts, masses,
    running_counts, running_masses, totals, stages, limits, slices,
    SLICES: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Sum bins over slices and from the largest logit on; leave in `counts` where a slice's tokens
    of a bin begin among all; aim at a row's first search."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(stages + row, _NONE)
    if (tl.load(temperatures + row) < _GREEDY) | (tl.load(largests + row) == float("-inf")):
        return
    b, piece = tl.arange(0, BINS), tl.arange(0, SLICES)[:, None]
    at = (row * slices + piece) * BINS + b[None]
    count = tl.load(counts + at, mask=(piece < slices) & (b < BINS - 1)[None], other=0)
    tl.store(counts + at, tl.cumsum(count, axis=0) - count, mask=piece < slices)
    mass = tl.load(masses + at, mask=(piece < slices) & (b < BINS - 1)[None], other=0)
    mass = tl.sum(mass, axis=0)
    kept = tl.sum(count, axis=0).to(tl.int64)
    tl.store(running_counts + row * BINS + b, tl.cumsum(kept, axis=0))
    tl.store(running_masses + row * BINS + b, tl.cumsum(mass, axis=0))
    total, top_k = tl.sum(mass, axis=0), tl.load(top_ks + row).to(tl.int64)
    if (top_k > 0) & (top_k < tl.sum(kept, axis=0)):
        tl.store(stages + row, _COUNT)
        tl.store(limits + row, top_k)
    else:
        _aim(row, total, top_ps, seeds, positions, choices, totals, stages, limits, True)


@triton.jit
def _aim(
    row, total, top_ps, seeds, positions, choices, totals, stages, limits, MAY_CUT: tl.constexpr
):
    """Begin the next search of a row of which tokens of this weight are left."""
    tl.store(totals + row, total)
    top_p = tl.load(top_ps + row).to(tl.float64)
    if MAY_CUT & (top_p < 1):
        tl.store(stages + row, _MASS)
        tl.store(limits + row, least_share(top_p, total))
    else:
        tl.store(stages + row, _DRAW)
        u = uniform(tl.load(seeds + row), tl.load(positions + row), tl.load(choices + row))
        tl.store(limits + row, tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1) + 1)


@triton.jit
def _gather(
    adjusted, binned, starts, running_counts, running_masses, stages, limits, found, found_ids,
    vocab_size,
    SEARCH: tl.constexpr, ROOM: tl.constexpr, SLICE: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Gather a slice's tokens of the bin that the limit is in, by ascending id."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(stages + row) != SEARCH:
        return
    limit = tl.load(limits + row)
    wanted, size, _, _ = wanted_bin(
        row, running_counts, running_masses, limit, SEARCH == _COUNT, BINS
    )
    if size > ROOM:
        return
    ids = piece * SLICE + tl.arange(0, SLICE)
    bins = tl.load(binned + row * vocab_size + ids, mask=ids < vocab_size, other=BINS - 1)
    is_wanted = bins.to(tl.int32) == wanted
    logits = tl.load(adjusted + row * vocab_size + ids, mask=is_wanted, other=0.0)
    start = tl.load(starts + (row * tl.num_programs(1) + piece) * BINS + wanted)
    at = row * ROOM + start + tl.cumsum(is_wanted.to(tl.int32), axis=0) - 1
    tl.store(found + at, logits, mask=is_wanted)
    tl.store(found_ids + at, ids, mask=is_wanted)


@triton.jit
def _settle(
    adjusted, largests, temperatures, top_ks, top_ps, seeds, positions, choices,
    running_counts, running_masses, totals, stages, limits, found, found_ids, found_weights,
    chosen, vocab_size,
    SEARCH: tl.constexpr, ROOM: tl.constexpr, CHUNK: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Settle a search: the weight that its cut leaves, and the next search; or the token."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(stages + row) != SEARCH:
        return
    largest, temperature = tl.load(largests + row), tl.load(temperatures + row)
    limit = tl.load(limits + row)
    _, size, before, above = wanted_bin(
        row, running_counts, running_masses, limit, SEARCH == _COUNT, BINS
    )
    is_found = size <= ROOM
    weights = found_weights + row * ROOM
    if is_found:
        logits = found + row * ROOM
        if SEARCH != _COUNT:
            weigh(logits, size, largest, temperature, weights, CHUNK)
    else:
        logits = adjusted + row * vocab_size
        size, before, above = tl.zeros_like(size) + vocab_size, before * 0, above * 0
    low, high = bounds_of(logits, size, CHUNK)
    beyond = before if SEARCH == _COUNT else above  # what is less than `high` away from the limit
    base = beyond
    while low + 1 < high:
        middle = low + (high - low) // 2
        if SEARCH == _COUNT:
            reached = base + count_from(logits, size, middle, CHUNK)
        else:
            reached = base + mass_from(
                logits, weights, size, is_found, largest, temperature, middle, CHUNK
            )
        if reached >= limit:
            low = middle
        else:
            high, beyond = middle, reached
    weight = weight_of(low, largest, temperature)
    if SEARCH == _COUNT:
        above += mass_from(logits, weights, size, False, largest, temperature, low + 1, CHUNK)
        total = above + (limit - beyond) * weight
        _aim(row, total, top_ps, seeds, positions, choices, totals, stages, limits, True)
    elif SEARCH == _MASS:
        ties = (limit - beyond + weight - 1) // weight
        total = tl.minimum(beyond + ties * weight, tl.load(totals + row))
        _aim(row, total, top_ps, seeds, positions, choices, totals, stages, limits, False)
    else:
        rank = (limit - 1 - beyond) // weight
        names = found_ids + row * ROOM
        token = token_at(logits, names, size, is_found, low, rank, CHUNK)
        tl.store(chosen + row, token.to(tl.int64))
