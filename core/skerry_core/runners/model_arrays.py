"""Packed weights as a compiled step points to them: records and arrays, layer after layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.cpu.rope_tables import rope_tables
from skerry_core.kernels.cpu.step_memory import ModelArrays
from skerry_core.kernels.cpu.step_records import LAYER, LAYER_MATRICES
from skerry_core.kernels.matmul.matmul import MATRIX, matrix_record
from skerry_core.kernels.simd.memory import address
from skerry_core.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD, layer_tensor
from skerry_core.runners.packing.packed_file import PackedModel

_NORMS = {  # field of LAYER: tensor
    "attention_norm": "attn_norm",
    "attention_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn_post_norm": "post_ffw_norm",
}
_NOTHING = np.empty(0, np.float32)
_NO_MATRIX = np.empty(0, MATRIX)


def model_arrays(packed: PackedModel, num_blocks: int) -> ModelArrays:
    """Return records and arrays of a packed model, over so many blocks of KV.

    No sequence is longer than all of them, so rotary tables end there.
    """
    config = packed.config
    positions = min(config.max_context, num_blocks * BLOCK_SIZE)
    layers, norms = _layers(packed)
    biases = {
        name: _by_layer(packed, f"{tensor}.bias")
        for name, tensor in (
            ("output_biases", "attn_output"),
            ("router_biases", "ffn_gate_inp"),
            ("gate_biases", "ffn_gate_exps"),
            ("up_biases", "ffn_up_exps"),
            ("down_biases", "ffn_down_exps"),
        )
    }
    tables = [rope_tables(rope, config.rotated, positions) for rope in config.ropes]
    return ModelArrays(
        layers=layers,
        matrices=_matrices(packed),
        embedding=_matrix(packed, EMBEDDING) if packed.stage.is_first else _NO_MATRIX,
        head=(
            _matrix(packed, EMBEDDING if config.tied_embeddings else HEAD)
            if packed.stage.is_last
            else _NO_MATRIX
        ),
        norms=norms,
        biases=_by_layer(packed, *(f"attn_{part}.bias" for part in "qkv")),
        head_norms=_by_layer(packed, "attn_q_norm.weight", "attn_k_norm.weight"),
        sinks=_by_layer(packed, "attn_sinks.weight"),
        rope_tables=np.stack([np.stack(each, axis=1) for each in tables]) if tables else _NOTHING,
        **biases,
    )


def _matrix(packed: PackedModel, name: str) -> NDArray[np.void]:
    return matrix_record(packed.layouts[name], address(packed.tensors[name]))


def _matrices(packed: PackedModel) -> NDArray[np.void]:
    """Return MATRIX[L * MATRICES_PER_LAYER]; a layer without experts has no router."""
    records = []
    for index, layer in enumerate(packed.config.layers):
        for name in LAYER_MATRICES:
            is_stacked = layer.has_experts and name.startswith("ffn_")
            tensor = layer_tensor(index, f"{name}_exps" if is_stacked else name)
            records.append(_matrix(packed, tensor))
        router = layer_tensor(index, "ffn_gate_inp")
        records.append(_matrix(packed, router) if layer.has_experts else np.zeros(1, MATRIX))
    return np.concatenate(records)


def _layers(packed: PackedModel) -> tuple[NDArray[np.void], NDArray[np.float32]]:
    """Return LAYER[L], and the norms that it points to, f32[N, hidden]."""
    config = packed.config
    layers = np.zeros(config.num_layers, LAYER)
    norms: list[NDArray[np.float32]] = []
    for index, layer in enumerate(config.layers):
        layers[index]["rope"] = -1 if layer.rope is None else config.ropes.index(layer.rope)
        layers[index]["view_index"] = config.windows.index(layer.window)
        layers[index]["has_experts"] = layer.has_experts
        for field, name in _NORMS.items():
            tensor = layer_tensor(index, name)
            layers[index][field] = len(norms) if tensor in packed.tensors else -1
            if tensor in packed.tensors:
                norms.append(packed.vector(tensor))
    if packed.stage.is_last:
        norms.append(packed.vector(FINAL_NORM))
    return layers, np.stack(norms) if norms else _NOTHING


def _by_layer(packed: PackedModel, *names: str) -> NDArray[np.float32]:
    """Return vectors of all layers, one after the other; zeros where a layer has none of them, and
    nothing where none has."""
    layers = range(packed.config.num_layers)
    tensors = [[f"blk.{layer}.{name}" for name in names] for layer in layers]
    rows = [
        np.concatenate([packed.vector(name) for name in each])
        for each in tensors
        if each[0] in packed.tensors
    ]
    if not rows:
        return _NOTHING
    present = iter(rows)
    nothing = np.zeros_like(rows[0])
    return np.stack([next(present) if each[0] in packed.tensors else nothing for each in tensors])
