"""How layers run over few tokens on a GPU: four products, and attention, where layers are plain."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from skerry_core.kernels.torch.decoder import Attend, Decoder, LayerWeights
from skerry_core.kernels.triton import few_products

MOST_ROWS = few_products.MOST_ROWS


def takes_few_rows(decoder: Decoder) -> bool:
    """Return whether `hidden_of_few` does what `Decoder.hidden` does: each branch is a norm and two
    products by whole matrices of floats, of which one rank has all."""
    c = decoder.config
    is_usual = c.activation == "silu" and c.residual_scale == 1
    return is_usual and decoder.is_whole and all(map(_is_plain, decoder.weights.layers))


def _is_plain(layer: LayerWeights) -> bool:
    has_norms = layer.attention_norm is not None and layer.ffn_norm is not None
    has_others = layer.attention_post_norm is not None or layer.ffn_post_norm is not None
    products = layer.qkv, layer.output, layer.gate_up, layer.down
    # float16 has no room for values that are normed after they were multiplied.
    are_floats = all(
        isinstance(matrix, Tensor) and matrix.dtype in (torch.bfloat16, torch.float32)
        for matrix in products
    )
    return has_norms and not has_others and are_floats


def hidden_of_few(decoder: Decoder, x: Tensor, attend: Attend) -> Tensor:
    """Do as `decoder.hidden` does with up to `MOST_ROWS` tokens."""
    eps, width = decoder.config.rms_norm_eps, decoder.config.head_dim
    for index, layer in enumerate(decoder.weights.layers):
        products = layer.qkv, layer.output, layer.gate_up, layer.down
        qkv, output, gate_up, down = cast(tuple[Tensor, ...], products)
        gains = cast(tuple[Tensor, Tensor], (layer.attention_norm, layer.ffn_norm))
        heads = few_products.normed_linear(x, gains[0], eps, qkv, layer.qkv_bias)
        attended = attend(index, heads.view(len(x), -1, width)).reshape(len(x), -1)
        x = few_products.linear_onto(attended, output, layer.output_bias, x)
        gated = few_products.normed_swiglu(x, gains[1], eps, gate_up)
        x = few_products.linear_onto(gated, down, None, x)
    return x
