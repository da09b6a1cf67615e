"""From a file's tensors to ours: renamed, split, stacked, and in one order of rows.

Names and shapes are checked at once. A tensor that does not lie in the file as we want it is made
when it is taken, so that one is held at a time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from skerry_core.models.tensor_names import Fused, TensorNames, place_of
from skerry_core.weights.tensors import (
    FileTensor,
    WeightsError,
    check_shape,
    check_shapes,
    dequantize,
    misplaced,
)

Shape = tuple[int, ...]
_ROTATED = re.compile(r"blk\.\d+\.attn_[qk]\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How one of our tensors is made."""

    shape: Shape
    make: Callable[[], FileTensor]


class NamedTensors(Mapping[str, FileTensor]):
    """A model's tensors by our names, exactly those that its configuration calls for."""

    def __init__(self, recipes: Mapping[str, _Recipe]) -> None:
        self._recipes = recipes

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, FileTensor],
        names: TensorNames,
        expected: Mapping[str, Shape],
        file: str,
        *,
        keeps_others: bool,
    ) -> NamedTensors:
        """Give a file's tensors our names; with `keeps_others` those that `names` has not are ours
        already. Raises WeightsError unless they are the expected ones."""
        recipes = dict[str, _Recipe]()
        experts = defaultdict[str, dict[int, FileTensor]](dict)
        for theirs, tensor in tensors.items():
            place = place_of(theirs, names)
            if place is None:
                if not keeps_others or theirs not in expected:
                    raise misplaced(theirs, file)
                recipes[theirs] = _whole(tensor)
            elif any(name not in expected for name in place.names):
                raise misplaced(theirs, file)
            elif place.expert is not None:
                experts[place.names[0]][place.expert] = tensor
            elif place.fused is not None:
                shape = _fused_shape(place.names, place.fused, expected)
                check_shape(theirs, tensor.shape, shape, file)
                for index, name in enumerate(place.names):
                    part = partial(_part, tensor, place.names, index, place.fused, expected)
                    recipes[name] = _Recipe(expected[name], part)
            else:
                recipes[place.names[0]] = _whole(tensor)
        for name, each in experts.items():
            recipes[name] = _stack(name, each, expected[name], file)
        shapes = {name: recipe.shape for name, recipe in recipes.items()}
        check_shapes(shapes, expected, file)
        return cls(recipes)

    def with_norms_plus_one(self) -> NamedTensors:
        """Return the same, with one more in the weights of norms."""

        def more(name: str) -> FileTensor:
            tensor = self[name]
            values = dequantize(tensor) + np.float32(1)
            return FileTensor("F32", tensor.shape, values.view(np.uint8).reshape(-1))

        return self._changed(lambda name: name.endswith("_norm.weight"), more)

    def with_halves(self, head_dim: int) -> NamedTensors:
        """Return the same, Q's and K's rotary pairs (2 i, 2 i + 1) at (i, i + head_dim / 2)."""

        def halves(name: str) -> FileTensor:
            tensor = self[name]
            bytes_per_output = len(tensor.data) // tensor.shape[0]
            pairs = tensor.data.reshape(-1, head_dim // 2, 2, bytes_per_output)
            split = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)
            return FileTensor(tensor.format, tensor.shape, split)

        return self._changed(lambda name: _ROTATED.fullmatch(name) is not None, halves)

    def _changed(
        self, applies: Callable[[str], bool], make: Callable[[str], FileTensor]
    ) -> NamedTensors:
        changed = {
            name: _Recipe(recipe.shape, partial(make, name)) if applies(name) else recipe
            for name, recipe in self._recipes.items()
        }
        return NamedTensors(changed)

    def __getitem__(self, name: str) -> FileTensor:
        return self._recipes[name].make()

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)


def _whole(tensor: FileTensor) -> _Recipe:
    return _Recipe(tensor.shape, lambda: tensor)


def _stack(name: str, parts: Mapping[int, FileTensor], shape: Shape, file: str) -> _Recipe:
    """Stack experts that a file has one by one."""
    for number in range(shape[0]):
        if number not in parts:
            raise WeightsError(f"{file}: tensor {name!r} lacks expert {number} of {shape[0]}")
        check_shape(f"{name}, expert {number}", parts[number].shape, shape[1:], file)
    if len(parts) != shape[0]:
        raise WeightsError(f"{file}: tensor {name!r} has {len(parts)} experts, not {shape[0]}")
    if len({part.format for part in parts.values()}) > 1:
        raise WeightsError(f"{file}: tensor {name!r} has experts of several formats")

    def make() -> FileTensor:
        data = np.concatenate([parts[number].data for number in range(shape[0])])
        return FileTensor(parts[0].format, shape, data)

    return _Recipe(shape, make)


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


def _part(
    tensor: FileTensor,
    names: tuple[str, ...],
    index: int,
    fused: Fused,
    expected: Mapping[str, Shape],
) -> FileTensor:
    """Cut one of ours out of a file's tensor."""
    axis = _axis(names[index])
    if fused.transposed:
        tensor = transposed(tensor)
    lead, rows = tensor.shape[:axis], tensor.shape[axis]
    by_row = tensor.data.reshape(*lead, rows, -1)
    if fused.in_turn:
        own = by_row[..., index :: len(names), :]
    else:
        first = sum(expected[name][axis] for name in names[:index])
        own = by_row[..., first : first + expected[names[index]][axis], :]
    data = np.ascontiguousarray(own).reshape(-1)
    return FileTensor(tensor.format, expected[names[index]], data)


def transposed(tensor: FileTensor) -> FileTensor:
    """Swap the last two axes of a tensor of floats."""
    *stack, inputs, outputs = tensor.shape
    values = tensor.data.reshape(*tensor.shape, -1).swapaxes(-2, -3)
    shape = (*stack, outputs, inputs)
    return FileTensor(tensor.format, shape, np.ascontiguousarray(values).reshape(-1))
