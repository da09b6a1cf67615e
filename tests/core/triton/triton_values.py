"""Random values for Triton's kernels, and what their results may differ by from NumPy's."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.core.paged_kv import DEVICE
from torch import Tensor

from skerry_core.kernels.torch.quantized import LARGEST

Float64 = NDArray[np.float64]

EPS = 1e-5  # of norms
dtypes = st.sampled_from([torch.float32, torch.float16])
_ROUNDINGS = {torch.float32: 1e-5, torch.float16: 2e-3}  # of a result of some hundred terms


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def wide(values: Tensor) -> Float64:
    """The same values on the host."""
    return values.double().cpu().numpy()


def check_same(told: Tensor, expected: Tensor) -> None:
    """The same bits on a device; in Triton's interpreter within what rounding explains.

    The interpreter multiplies by NumPy, whose BLAS sums a row's terms in an order that may depend
    on the other rows, by CPU: it shows what a kernel means, not its bits.
    """
    if DEVICE.type == "cuda":
        assert torch.equal(told, expected)
    else:
        share = 10 * _ROUNDINGS[told.dtype]
        torch.testing.assert_close(told, expected, rtol=share, atol=share)


def check_close(
    told: Tensor, expected: Float64, terms: Float64, share: float | None = None
) -> None:
    """Within a share of `terms`, a few roundings of `told`'s dtype unless given.

    Terms are sums of the magnitudes of what was added up: what cancels out may be as wrong as what
    it was made of.
    """
    off = np.abs(wide(told) - expected)
    most = (share or _ROUNDINGS[told.dtype]) * terms + 1e-6
    assert (off <= most).all(), f"{(off / most).max():.2g} times what rounding explains"


def normed(x: Tensor, weight: Tensor) -> Float64:
    """Norm over the last axis."""
    mean_squares = (wide(x) ** 2).mean(-1, keepdims=True)
    return wide(x) / np.sqrt(mean_squares + EPS) * wide(weight)


def rotary(width: int, positions: int = 200) -> tuple[Tensor, Tensor]:
    """Cosines and sines f32[positions, width / 2]."""
    angles = torch.arange(positions)[:, None] * (0.1 ** (torch.arange(width // 2) / width))
    return angles.cos().to(DEVICE), angles.sin().to(DEVICE)


def rotated(x: Float64, cos: Float64, sin: Float64) -> tuple[Float64, Float64]:
    """Halves of [T, heads, D] rotated by [T, D / 2]; and the magnitudes that it was made of."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    turned = [first * cos - second * sin, second * cos + first * sin]
    sizes = [np.abs(first * cos) + np.abs(second * sin), np.abs(second * cos) + np.abs(first * sin)]
    return np.concatenate(turned, axis=-1), np.concatenate(sizes, axis=-1)


def eighths(dtype: torch.dtype, *shape: int) -> Tensor:
    """f32 values that a format of 8 bits holds, its largest in each row: so the scale is 1.

    Triton's interpreter loses a carry where it rounds to e4m3fn, so nothing may be left to round.
    """
    most = LARGEST[dtype]
    narrow = (most / 4 * random(*shape)).clamp(-most, most).to(dtype).float()
    narrow[..., 0] = most
    return narrow
