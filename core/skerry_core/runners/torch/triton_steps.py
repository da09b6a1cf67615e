"""How a step runs on a GPU: our kernels between cuBLAS's products, decoding as captured graphs.

A step that only decodes is padded to a bucket of rows, and replays the graph of that bucket,
whatever its contexts: one launch from the tokens that the step before made to those that it makes,
no Python in between. Its inputs lie where the graph reads them, and arrive in one transfer. A step
with longer rows runs kernel by kernel: the device has enough to do meanwhile. So does one whose
rows share more KV than its graph lists pieces for. Neither waits for the device; what reads the
result does.

All graphs share their memory, the place of their logits and that of their tokens, since only one
runs at a time.

Up to 16 tokens take products that have norms, SwiGLU and the residual stream in them, where layers
are plain (`few_rows`).

When invariant, products are our own, of which a row has the same bits in tiles of all sizes, and
all attention goes in pieces of 256 tokens, merged in order.

Without a GPU the same code runs, uncaptured, in Triton's interpreter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.torch import torch_ops
from skerry_core.kernels.torch.decoder import Decoder
from skerry_core.kernels.torch.torch_ops import Ops
from skerry_core.kernels.torch.torch_sampling import (
    COUNT,
    DRAW,
    MASS,
    adjusts,
    searches,
    styles,
)
from skerry_core.kernels.torch.torch_staging import send
from skerry_core.kernels.triton import matmul as triton_matmul
from skerry_core.kernels.triton import triton_ops
from skerry_core.kernels.triton.attention import WHOLE_TILE, Tiles, attend_whole, tile_tokens
from skerry_core.kernels.triton.split_attention import SPLIT_TILE, ContextPieces, attend_split
from skerry_core.kernels.triton.triton_sampling import choose
from skerry_core.runner import Progress
from skerry_core.runners.device_sizes import row_buckets
from skerry_core.runners.torch.few_rows import MOST_ROWS, hidden_of_few, takes_few_rows
from skerry_core.runners.torch.paged_kv import PagedKV
from skerry_core.runners.torch.triton_arrangement import (
    Arrangement,
    arrange,
    most_pieces,
    pad,
    pieces_of,
    tiles,
)
from skerry_core.sampling import SAMPLE

TRITON_OPS = Ops(
    linear=triton_matmul.linear, rms_norm=triton_ops.rms_norm,
    add_rms_norm=triton_ops.add_rms_norm, rotate=torch_ops.rotate,
    gated=lambda gate_up, _: triton_ops.swiglu(gate_up),
)  # fmt: skip
INVARIANT_TRITON_OPS = replace(TRITON_OPS, linear=triton_matmul.invariant_linear)
_PREFILLS = (16, 32, 64, 65)  # tokens: products have a tile for each, and one for more
_SEARCHES = (COUNT, MASS, DRAW)  # of every graph; a row makes those that it needs


@dataclass(frozen=True, slots=True)
class _Inputs:
    """An `Arrangement` on the device."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    samples: Tensor
    sources: Tensor
    tables: Tensor
    split_tiles: Tiles
    whole_tiles: Tiles
    pieces: ContextPieces  # of the split tiles
    styles: list[Tensor]

    @classmethod
    def of(cls, step: Arrangement, arrivals: Tensor, into: Tensor | None = None) -> _Inputs:
        """Send a step to the device of `arrivals`, of `ContextPieces`, more where that is few."""
        sent = send(step.arrays, arrivals.device, into)
        ids, positions, slots, samples, sources, tables, *tiles = sent[: -len(step.styles)]
        split = Tiles(tiles[0], tiles[1], tiles[2])
        whole = Tiles(tiles[3], tiles[4], tiles[5])
        owners, indices, blocks, parts, count = tiles[6:]
        if len(owners) > len(arrivals):
            arrivals = arrivals.new_zeros(len(owners), arrivals.shape[1])
        pieces = ContextPieces(
            owners, indices, blocks, parts, count, arrivals, step.pieces.num_parts
        )
        styles = sent[-len(step.styles) :]
        return cls(ids, positions, slots, samples, sources, tables, split, whole, pieces, styles)


class TritonSteps:
    """Steps of one decoder over paged KV; see the module's docstring."""

    def __init__(self, decoder: Decoder, kv: PagedKV, *, max_rows: int, is_invariant: bool) -> None:
        self._decoder = decoder
        self._kv = kv
        self._is_invariant = is_invariant
        self._takes_few = not is_invariant and takes_few_rows(decoder)
        config = decoder.config
        self._group = config.num_heads // config.num_kv_heads
        self._device = kv.kv.device
        self._is_captured = self._device.type == "cuda"
        self._rows = row_buckets(max_rows)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by rows
        self._memory: Any = None  # of all graphs
        self._side: torch.cuda.Stream | None = None  # where they are captured
        most = self._rows[-1]
        room = sum(array.nbytes + 16 for array in self._padding(most).arrays)
        self._inputs = torch.zeros(room, dtype=torch.uint8, device=self._device)
        self._arrivals = torch.zeros(
            self._most_pieces(most), config.num_kv_heads, dtype=torch.int32, device=self._device
        )
        self._logits = torch.empty(most, config.vocab_size, device=self._device)
        shape, dtype = (max(most, *_PREFILLS), config.hidden_size), decoder.weights.final_norm.dtype
        self._arrived, self._passed = (  # hidden states of the stage before, and for the next
            torch.zeros(shape if is_there else (0, 0), dtype=dtype, device=self._device)
            for is_there in (not decoder.is_first, not decoder.is_last)
        )
        self._made = torch.zeros(most, dtype=torch.long, device=self._device)

    def warm_up(self, progress: Progress) -> None:
        """Compile every kernel and capture every graph, the largest first: they share memory."""
        progress("compiling Triton's kernels", 0.0)
        for count in _PREFILLS:
            self._run(_Inputs.of(self._prefill(count), self._arrivals), _SEARCHES, self._arrived)
        for done, rows in enumerate(self._rows[::-1] if self._is_captured else []):
            progress("capturing CUDA graphs", done / len(self._rows))
            self._decode(self._padding(rows), rows)
        progress("Triton's kernels are ready", 1.0)

    def run(
        self, batch: ForwardBatch, made: Tensor, arrived: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        if batch.feeds is not None and made.data_ptr() != self._made.data_ptr():
            self._made[: len(made)].copy_(made)  # of logits that were adjusted
        passed = self._launch(batch, arrived)
        if passed is not None:
            return passed, None
        logits, chosen = (of_all[: batch.num_samples] for of_all in (self._logits, self._made))
        if adjusts(batch.sampling):
            return logits, None
        # Without a GPU nothing carries them away before the next step is launched.
        return logits, chosen if self._is_captured else chosen.clone()

    def _launch(self, batch: ForwardBatch, arrived: Tensor | None) -> Tensor | None:
        """Leave a step's logits and tokens in their places, or return what the next stage takes."""
        step = arrange(batch, self._group, is_invariant=self._is_invariant)
        if batch.num_tokens == batch.num_rows <= self._rows[-1] and batch.num_samples:
            rows = self._rows[bisect_left(self._rows, batch.num_rows)]
            if len(step.pieces.tiles) + rows - batch.num_rows <= self._most_pieces(rows):
                if arrived is not None:
                    self._arrived[: len(arrived)] = arrived
                self._decode(self._padded(step, rows), rows)
                return None if self._decoder.is_last else self._passed[: batch.num_tokens]
        is_adjusted, samples = adjusts(batch.sampling), batch.sampling.samples
        inputs = _Inputs.of(step, self._arrivals)
        return self._run(inputs, () if is_adjusted else searches(samples), arrived)

    def _most_pieces(self, rows: int) -> int:
        return most_pieces(rows, self._kv.num_blocks, self._decoder.config.max_context)

    def _padded(self, step: Arrangement, rows: int) -> Arrangement:
        return pad(step, rows, self._most_pieces(rows), self._kv.num_blocks)

    def _padding(self, rows: int) -> Arrangement:
        """Return a step of padding alone."""
        empty = np.zeros(0, np.int32)
        tables, nothing = np.zeros((0, 0), np.int32), (empty, empty, empty)
        step = Arrangement(
            token_ids=empty, positions=empty, slots=empty, samples=empty, sources=empty,
            styles=styles(np.zeros(0, SAMPLE)), tables=tables, split_tiles=nothing,
            whole_tiles=nothing, pieces=pieces_of(nothing, empty, tables),
        )  # fmt: skip
        return self._padded(step, rows)

    def _prefill(self, count: int) -> Arrangement:
        """Return a step of a row and one that decodes, whose blocks are all the scratch block."""
        counting = np.arange(min(count, self._decoder.config.max_context), dtype=np.int32)
        counting[-1] = 0
        starts = np.array([0, len(counting) - 1], np.int32)
        counts = np.array([len(counting) - 1, 1], np.int32)
        most = [tile_tokens(tile, self._group) for tile in (SPLIT_TILE, WHOLE_TILE)]
        is_split = np.array([self._is_invariant, True])
        scratch, width = self._kv.num_blocks, -(-len(counting) // BLOCK_SIZE)
        tables = np.full((2, width), scratch, np.int32)
        split = tiles(starts, counts, is_split, most[0])
        return Arrangement(
            token_ids=np.zeros_like(counting), positions=counting,
            slots=scratch * BLOCK_SIZE + counting % BLOCK_SIZE, samples=starts[1:],
            sources=np.full_like(counting, -1), styles=styles(np.zeros(1, SAMPLE)),
            tables=tables, split_tiles=split,
            whole_tiles=tiles(starts, counts, ~is_split, most[1]),
            pieces=pieces_of(split, counting, tables),
        )  # fmt: skip

    def _placed(self, step: Arrangement) -> _Inputs:
        """Place a padded step where its graph expects it."""
        return _Inputs.of(step, self._arrivals, self._inputs)

    def _decode(self, step: Arrangement, rows: int) -> None:
        """Run a step that is padded to so many rows."""
        if not self._is_captured:
            return self._run_padded(self._placed(step))
        if rows not in self._graphs:
            self._graphs[rows] = self._capture(self._placed(self._padding(rows)))
        self._placed(step)
        self._graphs[rows].replay()

    def _capture(self, inputs: _Inputs) -> torch.cuda.CUDAGraph:
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)
            self._memory = torch.cuda.graph_pool_handle()
        steps, made = torch.cuda.current_stream(self._device), self._made.clone()
        self._side.wait_stream(steps)
        with torch.cuda.stream(self._side):  # compiles what is not compiled: not while capturing
            self._run_padded(inputs)
        steps.wait_stream(self._side)
        self._made.copy_(made)  # the next step may be fed
        graph = torch.cuda.CUDAGraph()
        # Other threads go on: those of another engine, or NCCL's, which asks for events.
        with torch.cuda.graph(
            graph, pool=self._memory, stream=self._side, capture_error_mode="thread_local"
        ):
            self._run_padded(inputs)
        return graph

    def _run_padded(self, inputs: _Inputs) -> None:
        """Launch a step over what arrived in its place, and leave what passes on in its own."""
        passed = self._run(inputs, _SEARCHES, self._arrived)
        if passed is not None:
            self._passed[: len(passed)] = passed

    def _run(
        self, inputs: _Inputs, searches: Sequence[int], arrived: Tensor | None
    ) -> Tensor | None:
        """Launch a step, from the tokens of the one before, or the first of what arrived from
        another stage, to its own tokens, or to what is returned for the next stage."""
        decoder, config = self._decoder, self._decoder.config
        has_split, has_whole = (
            len(tiles.rows) > 0 for tiles in (inputs.split_tiles, inputs.whole_tiles)
        )
        # Where bits are to be equal in any batch, rows of one token do as longer ones do.
        is_decode = not has_whole and not self._is_invariant

        def attend(layer: int, heads: Tensor) -> Tensor:
            weights, (kv, scales) = decoder.weights.layers[layer], self._kv.layer(layer)
            window = config.layers[layer].window
            new = triton_ops.NewHeads(
                inputs.slots, decoder.rope_table(layer), weights.q_norm, weights.k_norm,
                config.rms_norm_eps,
            )  # fmt: skip
            if not is_decode:
                triton_ops.rotate_and_store(heads, kv, inputs.positions, new, scales=scales)
            out = heads.new_empty((len(heads), config.num_heads, config.head_dim))
            if has_split:
                attend_split(
                    heads, kv, inputs.positions, inputs.split_tiles, inputs.pieces, out,
                    window=window, scales=scales, new=new if is_decode else None,
                )  # fmt: skip
            if has_whole:
                attend_whole(
                    heads, kv, inputs.tables, inputs.positions, inputs.whole_tiles, out,
                    window=window, scales=scales,
                )  # fmt: skip
            return out

        if decoder.is_first or arrived is None:
            triton_ops.feed(inputs.token_ids, inputs.sources, self._made)
            x = decoder.embedded(inputs.token_ids)
        else:
            x = arrived[: len(inputs.token_ids)]
        is_few = self._takes_few and len(x) <= MOST_ROWS
        hidden = hidden_of_few(decoder, x, attend) if is_few else decoder.hidden(x, attend)
        if not decoder.is_last:
            return hidden
        count = len(inputs.samples)
        choose(
            decoder.logits(hidden.index_select(0, inputs.samples)), *inputs.styles,
            searches=searches, adjusted=self._logits[:count], chosen=self._made[:count],
        )  # fmt: skip
        return None
