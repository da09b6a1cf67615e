"""From a file's tensors to ours: renamed, split, stacked, and in one order of rows.

Names and shapes are checked at once. A tensor that does not lie in the file as we want it is made
when its data are read, so that one is held at a time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import numpy as np

from skerry_core.models.tensor_names import Fused, TensorNames, place_of
from skerry_core.weights.tensors import (
    Bytes,
    FileTensor,
    WeightsError,
    check_shape,
    check_shapes,
    dequantize,
    misplaced,
)

Shape = tuple[int, ...]
_ROTATED = re.compile(r"blk\.\d+\.attn_[qk]\.(weight|bias)")


def name_tensors(
    tensors: Mapping[str, FileTensor],
    names: TensorNames,
    expected: Mapping[str, Shape],
    file: str,
    *,
    keeps_others: bool,
) -> dict[str, FileTensor]:
    """Return a file's tensors by our names; with `keeps_others` those that `names` has not are ours
    already. Raises WeightsError unless they are the expected ones."""
    named = dict[str, FileTensor]()
    experts = defaultdict[str, dict[int, FileTensor]](dict)
    for theirs, tensor in tensors.items():
        place = place_of(theirs, names)
        if place is None:
            if not keeps_others or theirs not in expected:
                raise misplaced(theirs, file)
            named[theirs] = tensor
        elif any(name not in expected for name in place.names):
            raise misplaced(theirs, file)
        elif place.expert is not None:
            experts[place.names[0]][place.expert] = tensor
        elif place.fused is not None:
            shape = _fused_shape(place.names, place.fused, expected)
            check_shape(theirs, tensor.shape, shape, file)
            for index, name in enumerate(place.names):
                named[name] = _cut(tensor, place.names, index, place.fused, expected)
        else:
            named[place.names[0]] = tensor
    for name, each in experts.items():
        named[name] = _stack(name, each, expected[name], file)
    check_shapes({name: tensor.shape for name, tensor in named.items()}, expected, file)
    return named


def without_zero_biases(
    tensors: Mapping[str, FileTensor], names: TensorNames, expected: Mapping[str, Shape]
) -> dict[str, FileTensor]:
    """Return a file's tensors but biases that are all zeros, of modules that have none in the
    model: GPTQ's tools write one for every module."""

    def is_needless(name: str, tensor: FileTensor) -> bool:
        place = place_of(name, names) if name.endswith(".bias") else None
        if place is None or all(each in expected for each in place.names):
            return False
        return not tensor.data.any()

    return {name: each for name, each in tensors.items() if not is_needless(name, each)}


def with_norms_plus_one(tensors: Mapping[str, FileTensor]) -> dict[str, FileTensor]:
    """Return the same, with one more in the weights of norms."""

    def more(tensor: FileTensor) -> Bytes:
        return (dequantize(tensor) + np.float32(1)).view(np.uint8).reshape(-1)

    return {
        name: FileTensor("F32", tensor.shape, partial(more, tensor))
        if name.endswith("_norm.weight")
        else tensor
        for name, tensor in tensors.items()
    }


def with_halves(tensors: Mapping[str, FileTensor], head_dim: int) -> dict[str, FileTensor]:
    """Return the same, Q's and K's rotary pairs (2 i, 2 i + 1) at (i, i + head_dim / 2)."""

    def halves(tensor: FileTensor) -> Bytes:
        data = tensor.data
        pairs = data.reshape(-1, head_dim // 2, 2, len(data) // tensor.shape[0])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)

    return {
        name: FileTensor(tensor.format, tensor.shape, partial(halves, tensor))
        if _ROTATED.fullmatch(name)
        else tensor
        for name, tensor in tensors.items()
    }


def _stack(name: str, parts: Mapping[int, FileTensor], shape: Shape, file: str) -> FileTensor:
    """Stack experts that a file has one by one."""
    for number in range(shape[0]):
        if number not in parts:
            raise WeightsError(f"{file}: tensor {name!r} lacks expert {number} of {shape[0]}")
        check_shape(f"{name}, expert {number}", parts[number].shape, shape[1:], file)
    if len(parts) != shape[0]:
        raise WeightsError(f"{file}: tensor {name!r} has {len(parts)} experts, not {shape[0]}")
    if len({part.format for part in parts.values()}) > 1:
        raise WeightsError(f"{file}: tensor {name!r} has experts of several formats")

    return FileTensor(parts[0].format, shape, tuple(parts[number] for number in range(shape[0])))


# Fused tensors. Rows of a matrix are its last axis but one; a bias has no other.


def _axis(name: str) -> int:
    return -1 if name.endswith(".bias") else -2


def _fused_shape(names: tuple[str, ...], fused: Fused, expected: Mapping[str, Shape]) -> Shape:
    """Return the shape of a file's tensor that several of ours are in."""
    axis, shape = _axis(names[0]), list(expected[names[0]])
    shape[axis] = sum(expected[name][axis] for name in names)
    if fused.transposed:
        shape[-2:] = reversed(shape[-2:])
    return tuple(shape)


def _cut(
    tensor: FileTensor,
    names: tuple[str, ...],
    index: int,
    fused: Fused,
    expected: Mapping[str, Shape],
) -> FileTensor:
    """Cut one of ours out of a file's tensor; expert by expert where they lie in the file, so that
    one is made at a time."""
    axis, shape = _axis(names[index]), expected[names[index]]
    first = sum(expected[name][axis] for name in names[:index])
    if axis == -1 or fused.transposed:
        own = partial(_elements, index, len(names), first, axis, shape[axis], fused)
        parts = _experts(tensor) if len(shape) > 2 else ()
        cut = tuple(FileTensor(e.format, shape[1:], partial(own, e)) for e in parts)
        return FileTensor(tensor.format, shape, cut or partial(own, tensor))
    rows = range(first, first + shape[-2])
    if fused.in_turn:
        rows = range(index, tensor.shape[-2], len(names))
    cut = tuple(each.cut(-2, rows) for each in _experts(tensor)) if len(shape) > 2 else ()
    return FileTensor(tensor.format, shape, cut) if cut else tensor.cut(-2, rows)


def _experts(tensor: FileTensor) -> tuple[FileTensor, ...]:
    """Return the matrices of a stack one by one; none where they are made together."""
    if isinstance(tensor.source, tuple) or callable(tensor.source):
        return tensor.source if isinstance(tensor.source, tuple) else ()
    experts = tensor.data.reshape(tensor.shape[0], -1)
    return tuple(FileTensor(tensor.format, tensor.shape[1:], expert) for expert in experts)


def _elements(
    index: int, turns: int, first: int, axis: int, count: int, fused: Fused, tensor: FileTensor
) -> Bytes:
    """Cut elements of a bias, or rows of a transposed matrix, out of a file's tensor."""
    if fused.transposed:
        tensor = transposed(tensor)
    by_row = tensor.by_row.reshape(*tensor.shape[:axis], tensor.shape[axis], -1)
    if fused.in_turn:
        return by_row[..., index::turns, :]
    return by_row[..., first : first + count, :]


def transposed(tensor: FileTensor) -> FileTensor:
    """Swap the last two axes of a tensor of floats."""
    *stack, inputs, outputs = tensor.shape
    values = tensor.data.reshape(*tensor.shape, -1).swapaxes(-2, -3)
    shape = (*stack, outputs, inputs)
    return FileTensor(tensor.format, shape, np.ascontiguousarray(values).reshape(-1))
