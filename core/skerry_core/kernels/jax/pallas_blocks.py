"""What our kernels in Pallas share: a tile of queries over cached blocks, and parts to merge."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels.jax.weights import Leaf


class AttentionPart(NamedTuple, Generic[Leaf]):
    """Attention over some keys, not yet divided: what parts are merged from."""

    mixed: Leaf  # f32[..., D]  values times shares
    largest: Leaf  # f32[...]   score; -inf where no key is seen
    total: Leaf  # f32[...]     of shares


def merge(first: AttentionPart[Array], second: AttentionPart[Array]) -> Array:
    """Merge attention over the keys of both, f32[..., D]. Some key is seen."""
    largest = jnp.maximum(first.largest, second.largest)
    keep, add = jnp.exp(first.largest - largest), jnp.exp(second.largest - largest)
    mixed = first.mixed * keep[..., None] + second.mixed * add[..., None]
    return mixed / (first.total * keep + second.total * add)[..., None]


def call(kernel: Any, **how: Any) -> Any:
    """Return what calls a kernel, by way of Triton: without its parameters JAX takes another
    compiler."""
    return pl.pallas_call(kernel, compiler_params=plgpu.CompilerParams(num_warps=4), **how)


def part_shapes(shape: tuple[int, ...]) -> AttentionPart[jax.ShapeDtypeStruct]:
    """Return shapes of parts of queries [..., D]."""
    shapes = shape, shape[:-1], shape[:-1]
    return AttentionPart(*(jax.ShapeDtypeStruct(each, jnp.float32) for each in shapes))


def own_block(*shape: int | None) -> pl.BlockSpec:
    """Return what each program has of an array: the block at the program's place."""
    return pl.BlockSpec(shape, lambda *at: (*at, *(0 for _ in range(len(shape) - len(at)))))


def whole(array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """Return an array for every program."""
    return pl.BlockSpec(array.shape, lambda *at: (0,) * len(array.shape))


def no_part(shape: tuple[int, ...]) -> AttentionPart[Array]:
    """Return attention to no key, with queries [tile, D]."""
    return AttentionPart(
        jnp.zeros(shape, jnp.float32),
        jnp.full(shape[:1], -jnp.inf, jnp.float32),
        jnp.zeros(shape[:1], jnp.float32),
    )


def attend_blocks(
    queries: Array,  # [tile, D]
    kv_ref: Any,
    tables_ref: Any,
    at: tuple[Array, Array, Array],  # layer, row, KV head
    position: Array,  # i32[tile]
    first: Array,  # i32[]
    begin: Array,  # i32[]  the first block
    end: Array,  # i32[]    behind the last
    window: int | None,
) -> AttentionPart[Array]:
    """Attend with one KV head to the blocks of a row, as far as they are cached and seen."""
    layer, row, head = at

    def attend(index: Array, part: AttentionPart[Array]) -> AttentionPart[Array]:
        block = tables_ref[row, index]
        key = index * BLOCK_SIZE + jnp.arange(BLOCK_SIZE)
        is_cached = key < first  # an idle slot may hold anything, NaN included
        keys, values = (
            jnp.where(is_cached[:, None], kv_ref[layer, kind, block, head], 0) for kind in (0, 1)
        )
        scores = jnp.dot(queries, keys.T, preferred_element_type=jnp.float32)
        visible = jnp.broadcast_to(is_cached[None], scores.shape)
        if window is not None:
            visible &= key[None] > position[:, None] - window
        scores = jnp.where(visible, scores, -jnp.inf)
        largest = jnp.maximum(part.largest, scores.max(axis=1))
        finite = jnp.where(largest == -jnp.inf, 0.0, largest)
        shares = jnp.exp(scores - finite[:, None])
        keep = jnp.exp(part.largest - finite)
        added = jnp.dot(shares.astype(values.dtype), values, preferred_element_type=jnp.float32)
        return AttentionPart(
            part.mixed * keep[:, None] + added, largest, part.total * keep + shares.sum(axis=1)
        )

    attended: AttentionPart[Array] = jax.lax.fori_loop(begin, end, attend, no_part(queries.shape))
    return attended
