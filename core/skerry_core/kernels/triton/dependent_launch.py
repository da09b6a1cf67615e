"""Programmatic dependent launch: on Hopper a kernel begins while the one before it ends.

It allows the kernel behind it to begin as well, finds its places, has what no kernel of a step
writes brought nearer, and waits before it reads what the one before wrote.
"""

# Kernels are compiled from what looks like Python; its types are not.
# pyright: reportMissingParameterType=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_CAPABILITY = (9, 0)


def overlaps(device: torch.device) -> bool:
    """Return whether a kernel may begin before the one that it waits for has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY


def launch_options(device: torch.device) -> dict[str, Any]:
    """Return `HAS_PDL` of a kernel that waits, and the option that lets it begin before that."""
    return {"HAS_PDL": True, "launch_pdl": True} if overlaps(device) else {"HAS_PDL": False}


@triton.jit
def prefetch(at):
    """Have the L2 cache fetch 64 bytes at each of these addresses, and go on."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [at.to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
