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
    """A model over paged KV: writes the KV of a step's tokens, and returns logits, and perhaps
    what is chosen of them."""

    def warm_up(self, progress: Progress) -> None: ...

    def run(self, batch: ForwardBatch, made: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run a step; return logits [S, V] on the device, and the tokens i64[S], of logits without
        NaN, where nothing adjusts these; valid until the next call.

        `made` i64 has the tokens that the step before made: see `ForwardBatch.feeds`.
        """
        ...


class PlainSteps:
    """All tokens of a step at once, in products whose bits depend on how many they are."""

    def __init__(self, decoder: Decoder, kv: PagedKV) -> None:
        self._decoder = decoder
        self._kv = kv

    def warm_up(self, progress: Progress) -> None:
        progress("torch has nothing to compile", 1.0)

    def run(self, batch: ForwardBatch, made: Tensor) -> tuple[Tensor, None]:
        device = self._kv.kv.device
        rows = torch_attention.StepRows.of(batch, device)

        def attend(layer: int, heads: Tensor) -> Tensor:
            q, k, v = self._decoder.rotated(layer, heads, rows.positions)
            kv, _ = self._kv.layer(layer)
            torch_attention.store(kv, rows.blocks, rows.slots, k, v)
            return torch_attention.attend(kv, rows, q, self._decoder.attention_form(layer))

        hidden = self._decoder.hidden(_token_ids(batch, made), attend)
        return self._decoder.logits(hidden[_samples(batch, device)]), None


class TiledSteps:
    """A tile of tokens at a time, and then a tile of samples: see `torch_invariant`."""

    def __init__(self, decoder: Decoder, kv: PagedKV) -> None:
        self._decoder = decoder
        self._kv = kv

    def warm_up(self, progress: Progress) -> None:
        progress("torch has nothing to compile", 1.0)

    def run(self, batch: ForwardBatch, made: Tensor) -> tuple[Tensor, None]:
        device = self._kv.kv.device
        hidden = []
        for tile in torch_invariant.tiles(batch, _token_ids(batch, made), self._kv.num_blocks):
            hidden.append(self._run_tile(tile)[: tile.num_tokens])
        sampled = torch.cat(hidden)[_samples(batch, device)]
        pieces = [self._decoder.logits(piece) for piece in torch_invariant.in_tiles(sampled)]
        if not pieces:
            return torch.empty(0, self._decoder.config.vocab_size, device=device), None
        return torch.cat(pieces)[: batch.num_samples], None

    def _run_tile(self, tile: torch_invariant.Tile) -> Tensor:
        def attend(layer: int, heads: Tensor) -> Tensor:
            q, k, v = self._decoder.rotated(layer, heads, tile.positions)
            kv, _ = self._kv.layer(layer)
            torch_attention.store(kv, tile.blocks, tile.slots, k, v)
            return torch_invariant.attend(kv, tile, q, self._decoder.attention_form(layer))

        return self._decoder.hidden(tile.token_ids, attend)


def _token_ids(batch: ForwardBatch, made: Tensor) -> Tensor:
    """Return i64[T], on the device of `made`."""
    token_ids = torch.from_numpy(batch.token_ids).to(made.device).long()
    feed(token_ids, batch.feeds, made)
    return token_ids


def _samples(batch: ForwardBatch, device: torch.device) -> Tensor:
    return torch.from_numpy(batch.sample_tokens).to(device).long()
