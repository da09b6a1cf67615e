"""Peers of `bench.gpu`: what others do with the same shapes, on the same device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from bench.device.gpu_report import Figure
from bench.device.gpu_steps import BYTES
from bench.device.gpu_subject import Subject, captured
from bench.device.peers.gpu_compiled import Attention, CompiledDecoder

MATRICES = "qkv", "output", "gate_up", "down"


@torch.no_grad()
def products(subject: Subject) -> list[Figure]:
    """Multiply by the matrices of all layers with cuBLAS, one after the other: no cache holds them.

    Microseconds of one product; what bounds it is the larger of its bytes' time and its
    operations'.
    """
    figures = []
    for name in MATRICES:
        matrices = [getattr(layer, name) for layer in subject.weights.layers]
        for rows in subject.sizes.product_rows:
            outputs, inner = matrices[0].shape
            x = torch.randn(rows, inner, dtype=matrices[0].dtype, device=subject.device)
            run = captured(
                lambda: [functional.linear(x, each, None) for each in matrices],  # noqa: B023
                subject.device,
            )
            seconds = subject.kernel_seconds(run) / len(matrices)
            num_bytes = x.element_size() * (outputs * inner + rows * (outputs + inner))
            least = num_bytes / subject.copy_rate, 2 * rows * outputs * inner / subject.product_rate
            share, of = max(least) / seconds, "bytes or operations over their rates"
            figures.append(Figure(f"cuBLAS, {name}, {rows} rows", 1e6 * seconds, "us", of, share))
    return figures


@torch.no_grad()
def compiled(subject: Subject, rows: int, attention: Attention) -> list[Figure]:
    """Decode with our weights in a decoder as gpt-fast writes it, its cache full but for the
    chain."""
    s, is_cuda = subject.sizes, subject.device.type == "cuda"
    size = -(-(s.context + s.chain) // 128) * 128  # FlexAttention's blocks
    decoder = CompiledDecoder(s.model, subject.weights, rows, size, attention, is_compiled=is_cuda)
    decoder.capture(s.context - 1)
    run: Callable[[], None] = lambda: decoder.run(s.context - 1, s.chain)  # noqa: E731
    return [_figure(subject, f"{rows} rows, compiled, {attention}", rows, run)]


@torch.no_grad()
def transformers(subject: Subject, rows: int) -> list[Figure]:
    """Decode with transformers' Llama of the same shape: static cache, compiled, in a graph.

    Raises ImportError where it is not installed.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    s, c, device = subject.sizes, subject.sizes.model, subject.device
    shape = LlamaConfig(
        hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim, vocab_size=c.vocab_size,
        max_position_embeddings=c.max_context, tie_word_embeddings=c.tied_embeddings,
    )  # fmt: skip
    default = torch.get_default_dtype()
    torch.set_default_dtype(s.dtype)  # there is no room for it in float32
    try:
        with torch.device(device):
            model: Any = LlamaForCausalLM(shape).eval()
    finally:
        torch.set_default_dtype(default)
    cache = StaticCache(config=shape, max_cache_len=s.context + s.chain)
    ids = torch.ones(rows, 1, dtype=torch.long, device=device)
    forward = model.forward

    def step() -> None:
        logits = forward(ids, past_key_values=cache, use_cache=True).logits
        ids.copy_(logits[:, -1:].argmax(-1))

    def begin() -> None:
        for layer in cache.layers:  # which count for themselves, and write beyond their end
            layer.cumulative_length.fill_(s.context - 1)

    def run() -> None:
        begin()
        for _ in range(s.chain):
            replay()

    step()  # the cache takes its memory: not in a graph, whose next replay would reuse it
    begin()
    if device.type == "cuda":
        forward = torch.compile(forward, fullgraph=True, dynamic=False)
    replay = captured(step, device)
    return [_figure(subject, f"{rows} rows, transformers, compiled", rows, run)]


def _figure(subject: Subject, name: str, rows: int, run: Callable[[], object]) -> Figure:
    s = subject.sizes
    seconds = subject.seconds(run) / s.chain
    num_bytes = subject.weight_bytes() + subject.kv_bytes(rows * (s.context + s.chain // 2))
    share = num_bytes / subject.copy_rate / seconds
    return Figure(f"decode, {name}", 1e3 * seconds, "ms", BYTES, share)
