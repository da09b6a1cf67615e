"""The JAX runner on the same weights, as `bench.gpu` measures the Torch runner."""

from __future__ import annotations

import os
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.device.gpu_batches import num_blocks
from bench.device.gpu_report import Figure
from bench.device.gpu_steps import decode_figure, prefill_figure
from bench.device.gpu_subject import Subject


def jax_steps(subject: Subject) -> list[Figure]:
    """Decode greedily and sampled, and compute a prompt. Raises ImportError without JAX and numba,
    ConfigError where JAX has no GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # Torch has memory too
    from skerry_core.config import ConfigError
    from skerry_core.kernels.jax.weights import assemble, join
    from skerry_core.runners.jax.jax_process import is_cpu, mesh_of
    from skerry_core.runners.jax.jax_runner import JaxRunner

    if is_cpu() and subject.device.type == "cuda":
        raise ConfigError("JAX has no GPU here: jax[cuda13] is not installed")
    s, mesh = subject.sizes, mesh_of(1)
    room = max(num_blocks([s.context + s.chain] * max(s.batches)), num_blocks([s.prefill]))
    with tempfile.TemporaryDirectory() as cache:
        runner: Any = JaxRunner(
            s.model, join([assemble(s.model, _tensors(subject))], mesh), mesh=mesh,
            num_blocks=room, max_step_tokens=s.prefill, max_samples=max(s.batches),
            cache_dir=Path(cache), chooses="device",
        )  # fmt: skip
        values = torch.randn(runner.kv_format.shape).to(s.dtype)
        for block in range(room):  # zeros would take less power
            runner.admit_block(block, _bits(values))
        figures = [
            decode_figure(
                subject, runner, f"{rows} rows, jax{', sampled' if is_sampled else ''}",
                [s.context] * rows, is_sampled=is_sampled,
            )
            for rows, is_sampled in product(s.batches, (False, True))
        ]  # fmt: skip
        figures.append(prefill_figure(subject, runner, ", jax"))
        runner.close()
    return figures


def _tensors(subject: Subject) -> dict[str, NDArray[Any]]:
    """Return the subject's weights on the host, by the names of a file's tensors."""
    c, weights = subject.sizes.model, subject.weights
    heads = [c.num_heads * c.head_dim, *2 * [c.num_kv_heads * c.head_dim]]
    found: dict[str, Any] = {
        "token_embd.weight": weights.embedding, "output_norm.weight": weights.final_norm,
        "output.weight": weights.head,
    }  # fmt: skip
    for index, layer in enumerate(weights.layers):
        qkv: Any = layer.qkv
        gate_up: Any = layer.gate_up
        q, k, v = qkv.split(heads)
        gate, up = gate_up.chunk(2)
        parts = {
            "attn_norm": layer.attention_norm, "attn_q": q, "attn_k": k, "attn_v": v,
            "attn_output": layer.output, "ffn_norm": layer.ffn_norm, "ffn_gate": gate,
            "ffn_up": up, "ffn_down": layer.down,
        }  # fmt: skip
        found |= {f"blk.{index}.{name}.weight": part for name, part in parts.items()}
    return {name: _host(tensor) for name, tensor in found.items()}


def _host(tensor: Tensor) -> NDArray[Any]:
    import jax.numpy as jnp

    bits = _bits(tensor.cpu())
    return bits.view(jnp.bfloat16) if tensor.dtype is torch.bfloat16 else bits


def _bits(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's memory; bfloat16, which NumPy has not, as u16."""
    data = tensor.contiguous()
    array: NDArray[Any] = (
        data.view(torch.uint16) if data.dtype is torch.bfloat16 else data
    ).numpy()
    return np.ascontiguousarray(array)
