"""How a model's steps run on a device: which kernels, and what of a numeric build they decide."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from skerry_core.config import ModelConfig
from skerry_core.kernels.torch import invariant as torch_invariant
from skerry_core.kernels.torch.decoder import Decoder, DecoderWeights
from skerry_core.kernels.torch.quantized import Matrix
from skerry_core.kernels.torch.torch_ops import TORCH_OPS, Ops
from skerry_core.kernels.torch.torch_sampling import Choose
from skerry_core.runners.torch.paged_kv import PagedKV
from skerry_core.runners.torch.rank_links import RankLinks
from skerry_core.runners.torch.torch_steps import PlainSteps, Steps, TiledSteps

Kernels = Literal["torch", "triton"]


@dataclass(frozen=True, slots=True)
class OpenedSteps:
    steps: Steps
    choose: Choose | None  # how tokens are chosen; None: in plain Torch
    build: list[object]  # what decides a token's bits here


def kernels_of(device: torch.device) -> Kernels:
    """Return the kernels that a device runs best."""
    return "triton" if device.type == "cuda" else "torch"


def open_steps(
    config: ModelConfig, weights: DecoderWeights, kv: PagedKV, *, kernels: Kernels,
    is_invariant: bool, max_rows: int, links: RankLinks | None,
) -> OpenedSteps:  # fmt: skip
    """Open kernels, of which Triton's need not be installed otherwise. Raises ConfigError."""

    def decoder(ops: Ops) -> Decoder:
        if links is not None:
            ops = links.ops(ops, config.vocab_size, is_invariant=is_invariant)
        return Decoder(config, weights, ops)

    if kernels == "triton":
        import triton

        from skerry_core.kernels.triton.matmul import check_products
        from skerry_core.kernels.triton.triton_sampling import choose
        from skerry_core.runners.torch import triton_steps

        if is_invariant and kv.kv.is_cuda:  # the interpreter's products are NumPy's
            check_products(_shapes_once(weights))
        ops = triton_steps.INVARIANT_TRITON_OPS if is_invariant else triton_steps.TRITON_OPS
        on_gpu = triton_steps.TritonSteps(
            decoder(ops), kv, max_rows=max_rows, is_invariant=is_invariant
        )
        return OpenedSteps(on_gpu, choose, ["triton", triton.__version__, is_invariant])
    if not is_invariant:
        return OpenedSteps(PlainSteps(decoder(TORCH_OPS), kv), None, [])
    torch_invariant.check_products(
        [matrix for matrix in _shapes_once(weights) if isinstance(matrix, Tensor)],
        kv_heads=config.num_kv_heads,
        group=config.num_heads // config.num_kv_heads, head_dim=config.head_dim,
    )  # fmt: skip
    tiled = TiledSteps(decoder(torch_invariant.INVARIANT_OPS), kv)
    return OpenedSteps(tiled, None, [f"tiles of {torch_invariant.TILE}"])


def _shapes_once(weights: DecoderWeights) -> list[Matrix]:
    """Return one matrix of each shape and form that the model multiplies by."""
    matrices: list[Matrix | None] = [weights.head]
    for layer in weights.layers:
        matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
        if layer.experts is not None:
            each = layer.experts
            matrices += [each.router, each.gate_up[0], each.down[0]]
    found = [matrix for matrix in matrices if matrix is not None]
    return list({(type(matrix), *matrix.shape): matrix for matrix in found}.values())


def processor(device: torch.device) -> str:
    """Return what decides which kernels Torch runs, beside its version."""
    if device.type == "cuda":
        return f"cuda {torch.version.cuda} {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {capability} {torch.get_num_threads()} threads"
