"""How a step runs in plain Torch: all tokens at once, or in tiles that keep bits the same."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from skerry_core.batch import ForwardBatch
from skerry_core.kernels.torch import attention as torch_attention
from skerry_core.kernels.torch import invariant as torch_invariant
from skerry_core.kernels.torch.decoder import Decoder
from skerry_core.kernels.torch.torch_staging import feed
from skerry_core.runner import Progress
from skerry_core.runners.torch.paged_kv import PagedKV


class Steps(Protocol):
    """A model, or a stage of one, over paged KV: writes the KV of a step's tokens, and returns
    logits, and perhaps what is chosen of them."""

    def warm_up(self, progress: Progress) -> None: ...

    def run(
        self, batch: ForwardBatch, made: Tensor, arrived: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run a step; return logits [S, V] on the device, and the tokens i64[S], of logits without
        NaN, where nothing adjusts these; valid until the next call.

        `made` i64 has the tokens that the step before made: see `ForwardBatch.feeds`. A stage that
        is not the first takes hidden states [T, hidden] that `arrived` from the one before, and
        one that is not the last returns them in place of logits.
        """
        ...


class PlainSteps:
    """All tokens of a step at once, in products whose bits depend on how many they are."""

    def __init__(self, decoder: Decoder, kv: PagedKV) -> None:
        self._decoder = decoder
        self._kv = kv

    def warm_up(self, progress: Progress) -> None:
        progress("torch has nothing to compile", 1.0)

    def run(
        self, batch: ForwardBatch, made: Tensor, arrived: Tensor | None = None
    ) -> tuple[Tensor, None]:
        device = self._kv.kv.device
        rows = torch_attention.StepRows.of(batch, device)

        def attend(layer: int, heads: Tensor) -> Tensor:
            q, k, v = self._decoder.rotated(layer, heads, rows.positions)
            kv, _ = self._kv.layer(layer)
            torch_attention.store(kv, rows.blocks, rows.slots, k, v)
            return torch_attention.attend(kv, rows, q, self._decoder.attention_form(layer))

        if arrived is None:
            arrived = self._decoder.embedded(_token_ids(batch, made))
        hidden = self._decoder.hidden(arrived, attend)
        if not self._decoder.is_last:
            return hidden, None
        return self._decoder.logits(hidden[_samples(batch, device)]), None


class TiledSteps(PlainSteps):
    """A tile of tokens at a time, and then a tile of samples: see `torch_invariant`."""

    def run(
        self, batch: ForwardBatch, made: Tensor, arrived: Tensor | None = None
    ) -> tuple[Tensor, None]:
        device = self._kv.kv.device
        before = None if arrived is None else torch_invariant.in_tiles(arrived)
        tiles = []
        for tile in torch_invariant.tiles(batch, _token_ids(batch, made), self._kv.num_blocks):
            x = self._decoder.embedded(tile.token_ids) if before is None else next(before)
            tiles.append(self._run_tile(tile, x)[: tile.num_tokens])
        hidden = torch.cat(tiles)
        if not self._decoder.is_last:
            return hidden, None
        sampled = hidden[_samples(batch, device)]
        pieces = [self._decoder.logits(piece) for piece in torch_invariant.in_tiles(sampled)]
        if not pieces:
            return torch.empty(0, self._decoder.config.vocab_size, device=device), None
        return torch.cat(pieces)[: batch.num_samples], None

    def _run_tile(self, tile: torch_invariant.Tile, x: Tensor) -> Tensor:
        def attend(layer: int, heads: Tensor) -> Tensor:
            q, k, v = self._decoder.rotated(layer, heads, tile.positions)
            kv, _ = self._kv.layer(layer)
            torch_attention.store(kv, tile.blocks, tile.slots, k, v)
            return torch_invariant.attend(kv, tile, q, self._decoder.attention_form(layer))

        return self._decoder.hidden(x, attend)


def _token_ids(batch: ForwardBatch, made: Tensor) -> Tensor:
    """Return i64[T], on the device of `made`."""
    token_ids = torch.from_numpy(batch.token_ids).to(made.device).long()
    feed(token_ids, batch.feeds, made)
    return token_ids


def _samples(batch: ForwardBatch, device: torch.device) -> Tensor:
    return torch.from_numpy(batch.sample_tokens).to(device).long()
