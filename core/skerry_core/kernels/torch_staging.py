"""From the host to a device without waiting: many small arrays in one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes: what kernels are compiled for


def send(
    arrays: Sequence[NDArray[Any]], device: torch.device, into: Tensor | None = None
) -> list[Tensor]:
    """Copies of the arrays on the device, views of one buffer.

    With `into`, u8[n] on the device, they lie there from its start: arrays of the same shapes at
    the same addresses, as a captured graph wants them. Pinned memory on the way lets the call
    return before the copy is done; whoever uses the tensors comes after it on the same stream.
    """
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    offsets = np.cumsum([0, *sizes]).tolist()
    staged = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    bytes_of = staged.numpy()
    for array, start in zip(arrays, offsets, strict=False):
        bytes_of[start : start + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    if into is None:
        sent = staged.to(device, non_blocking=True)
    else:
        sent = into[: len(staged)]
        sent.copy_(staged, non_blocking=True)
    return [
        sent[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, start in zip(arrays, offsets, strict=False)
    ]
