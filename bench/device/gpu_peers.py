"""Peers of `bench.gpu`, where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from skerry_core.config import ModelConfig


def static_cache_seconds(
    config: ModelConfig,
    rows: int,
    context: int,
    dtype: torch.dtype,
    device: torch.device,
    seconds: Callable[[Callable[[], object]], float],
) -> float | None:
    """Seconds of a decoding step of transformers' Llama: static cache, compiled with CUDA graphs.

    None where transformers is not installed. On a CPU it is not compiled.
    """
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    shape = LlamaConfig(
        hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads, head_dim=config.head_dim,
        vocab_size=config.vocab_size, max_position_embeddings=config.max_context,
        tie_word_embeddings=config.tied_embeddings,
    )  # fmt: skip
    with torch.device(device):
        model: Any = LlamaForCausalLM(shape).to(dtype).eval()
    cache = StaticCache(config=shape, max_cache_len=context)
    ids = torch.ones(rows, 1, dtype=torch.long, device=device)
    position = torch.tensor([context - 1], device=device)

    def forward() -> torch.Tensor:
        told = model(ids, past_key_values=cache, cache_position=position, use_cache=True)
        return told.logits[:, -1].argmax(-1).cpu()

    with torch.inference_mode():
        forward()  # the cache takes its memory: not in a graph, whose next replay would reuse it
        if device.type == "cuda":
            model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
        return seconds(forward)
