"""What a model takes of this machine: disk, memory by context and streams, and whether it fits."""

from __future__ import annotations

from typing import Any

from skerry_cli.composition.loading import block_bytes
from skerry_cli.composition.opening import decoder_config, encoder_network
from skerry_cli.home.machine import free_memory
from skerry_cli.home.memory import BLOCK_TOKENS
from skerry_core.runners.packing.packed import packed_bytes
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.models.model_files import ModelFiles

OVERHEAD = 300 << 20  # bytes of a process besides weights and KV
CONTEXTS = (2048, 8192, 32_768, 131_072)  # tokens; and the model's own
STREAMS = (1, 8, 32)


def footprint(spec: ModelSpec, files: ModelFiles) -> dict[str, Any]:
    """Return bytes on the `numba` runner, as it keeps weights by itself. Raises
    `UnsupportedModel`."""
    disk = {"disk": spec.size}
    if spec.is_encoder:
        return {**disk, "weights": encoder_network(files.weights).packed_bytes}
    weights = packed_bytes(files.weights)
    per_token = block_bytes(decoder_config(files.weights)) // BLOCK_TOKENS
    contexts = sorted({min(each, spec.context_window) for each in (*CONTEXTS, spec.context_window)})
    needed = [
        {
            "context": context,
            **{
                f"{streams} streams" if streams > 1 else "1 stream": weights
                + OVERHEAD
                + per_token * context * streams
                for streams in STREAMS
            },
        }
        for context in contexts
    ]
    free = free_memory()
    return {
        **disk,
        "weights": weights,
        "kv_per_token": per_token,
        "needed": needed,
        "free": free,
        "fits": None if free is None else weights + OVERHEAD + per_token * contexts[0] <= free,
    }
