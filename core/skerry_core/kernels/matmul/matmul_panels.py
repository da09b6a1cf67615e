"""Many tokens at once: blocks of a group are unpacked, once for all of them, into a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numba.core import cgutils

from skerry_core.kernels.matmul.layout import WeightFormat
from skerry_core.kernels.matmul.matmul_tiles import (
    RowGroup,
    WeightBlock,
    Weights,
    block_bytes,
    fetching,
    packed_weights,
    quantized_tile,
    streaming,
)
from skerry_core.kernels.simd.emitter import F32, I8, I64, Emitter, Value, vector
from skerry_core.kernels.simd.targets import Traits

PANEL_BLOCKS = 16  # of a group, that are unpacked together: they stay in the first-level cache
_PANEL_TOKENS = 5  # from which on `emit_unpacked` unpacks: fewer are faster without
PANEL_TILES = 2  # tiles that make unpacking a panel worth it

UNPACK_ALIKE = (  # signed bytes and a scale, in the second also a minimum: see `emit_unpacked`
    [format_ for format_ in WeightFormat if format_.codebook is not None],
    [WeightFormat.Q5_1, WeightFormat.UINT4],
)
IN_PANELS = [  # of groups side by side, see `emit_panels`
    format_
    for format_ in WeightFormat
    if format_.is_quantized and not any(format_ in alike for alike in UNPACK_ALIKE)
]


@dataclass(frozen=True, slots=True)
class Panel:
    """Memory for some unpacked blocks of a group: an address. All parts are vectors in a row:
    8 quads, the scale, and the second factor where the format has one."""

    address: Value
    rows: int
    has_second: bool

    @classmethod
    def allocate(cls, e: Emitter, traits: Traits, format_: WeightFormat) -> Panel:
        """Allocate a panel on the stack."""
        one = (WeightFormat.Q4_0, WeightFormat.Q8_0)
        has_second = format_ not in one and format_.codebook is None
        alignment = 64
        size = PANEL_BLOCKS * (9 + has_second) * 4 * traits.rows
        memory = cgutils.alloca_once(e.builder, I8, size=size + alignment)
        end = e.offset(e.builder.ptrtoint(memory, I64), alignment - 1)
        return cls(e.builder.and_(end, e.i64(-alignment)), traits.rows, has_second)

    def fill(self, e: Emitter, weights: Weights, first: Value, count: Value) -> None:
        """Unpack `count` >= 1 blocks from the `first` on."""

        def unpack(index: Value) -> None:
            block = weights(e.builder.add(first, index))
            second = [] if block.second is None else [block.second]
            for part, value in enumerate([*block.quads, block.scale, *second]):
                e.store(value, self._part(e, index, part), align=4 * self.rows)

        e.repeat_maybe(count, unpack)

    def weights(self, e: Emitter) -> Weights:
        """Return the blocks that it was filled with."""
        quad, floats = vector(I8, 4 * self.rows), vector(F32, self.rows)

        def load(index: Value) -> WeightBlock:
            kinds = [*[quad] * 8, *[floats] * (1 + self.has_second)]
            parts = [
                e.load(self._part(e, index, part), kind, align=4 * self.rows)
                for part, kind in enumerate(kinds)
            ]
            return WeightBlock(parts[:8], parts[8], parts[9] if self.has_second else None)

        return load

    def _part(self, e: Emitter, index: Value, part: int) -> Value:
        size = 4 * self.rows
        return e.offset(e.offset(self.address, index, (9 + self.has_second) * size), part, size)


def out_rows(e: Emitter, group: RowGroup, token: Value, count: int) -> list[Value]:
    """Return addresses of consecutive tokens' sums."""
    b = e.builder
    return [b.add(group.out, b.mul(b.add(token, e.i64(t)), group.out_stride)) for t in range(count)]


def emit_panels(
    e: Emitter,
    traits: Traits,
    format_: WeightFormat,
    groups: Sequence[RowGroup],
    tokens: Value,
) -> None:
    """Emit all these groups and tokens, a multiple of the smallest tile, by panels; sums wait in
    `out` meanwhile."""
    b, steps = e.builder, groups[0].steps
    packed = [packed_weights(e, traits, format_, each) for each in groups]
    panels = [Panel.allocate(e, traits, format_) for _ in groups]
    share = -(-block_bytes(format_, traits.rows) // PANEL_TILES)  # to fetch per block of a tile
    quant_bytes = format_.row_quant_bytes * traits.rows

    def one_panel(index: Value) -> None:
        first = e.offset(e.i64(0), index, PANEL_BLOCKS)
        left = b.sub(steps, first)
        is_last = b.icmp_signed("<", left, e.i64(PANEL_BLOCKS))
        count = b.select(is_last, left, e.i64(PANEL_BLOCKS))
        for panel, weights in zip(panels, packed, strict=True):
            panel.fill(e, weights, first, count)
        is_first = b.icmp_signed("==", index, e.i64(0))

        done = e.i64(0)
        for size in traits.target.panel_tokens:
            num_tiles = b.sdiv(b.sub(tokens, done), e.i64(size))

            def tile(number: Value, *, begin: Value = done, size: int = size) -> None:
                token = e.offset(begin, number, size)
                is_early = b.icmp_signed("<", number, e.i64(PANEL_TILES))
                turn = b.select(is_early, number, e.i64(PANEL_TILES - 1))
                ahead = b.mul(turn, b.mul(count, e.i64(share)))
                unpacked = []
                for panel, each in zip(panels, groups, strict=True):
                    to_come = e.offset(each.quants, b.add(first, count), quant_bytes)
                    unpacked.append(fetching(e, panel.weights(e), b.add(to_come, ahead), share))
                _add_tile(
                    e, traits, format_, groups, unpacked, first, count, token, size,
                    is_first=is_first,
                )  # fmt: skip

            e.repeat_maybe(num_tiles, tile)
            done = e.offset(done, num_tiles, size)

    num_panels = b.sdiv(e.offset(steps, PANEL_BLOCKS - 1), e.i64(PANEL_BLOCKS))
    e.repeat_maybe(num_panels, one_panel)


def _add_tile(
    e: Emitter,
    traits: Traits,
    format_: WeightFormat,
    groups: Sequence[RowGroup],
    weights: Sequence[Weights],
    first: Value,
    count: Value,
    token: Value,
    size: int,
    *,
    is_first: Value,
) -> None:
    """Emit a tile over a panel's blocks, added to what `out` has of those before it."""
    floats = vector(F32, traits.rows)
    rows = [out_rows(e, group, token, size) for group in groups]
    zero = e.constant(floats, 0.0)
    before = [
        [e.builder.select(is_first, zero, e.load(row, floats, align=4)) for row in each]
        for each in rows
    ]
    sums = quantized_tile(e, traits, format_, groups[0], weights, first, count, token, before)
    for totals, each in zip(sums, rows, strict=True):
        for total, row in zip(totals, each, strict=True):
            e.store(total, row, align=4)


def emit_unpacked(
    e: Emitter,
    traits: Traits,
    formats: Sequence[WeightFormat],
    group: RowGroup,
    given: Value,
    tokens: Value,
) -> None:
    """Emit all tokens of a group in one of some formats whose panels are alike.

    So they share their tiles, and a format more costs little compilation. Few tokens take their
    weights one by one as they are packed, which then come from the cache.
    """
    b, rows = e.builder, traits.rows
    after, several = b.append_basic_block("all tokens"), b.append_basic_block("several tokens")
    are_few = b.icmp_signed("<", tokens, e.i64(_PANEL_TOKENS))
    choice = b.switch(given, after)
    for format_ in formats:
        block = b.append_basic_block(format_.name)
        choice.add_case(int(format_), block)
        b.position_at_end(block)
        with b.if_then(are_few):
            packed = packed_weights(e, traits, format_, group)
            weights = streaming(e, packed, format_, rows, group)

            def one(
                token: Value, *, weights: Weights = weights, own: WeightFormat = format_
            ) -> None:
                sums, first = [e.constant(vector(F32, rows), 0.0)], e.i64(0)
                [(total,)] = quantized_tile(
                    e, traits, own, group, [weights], first, group.steps, token, [sums]
                )
                e.store(total, out_rows(e, group, token, 1)[0], align=4)

            e.repeat_maybe(tokens, one)
        b.cbranch(are_few, after, several)
    b.position_at_end(several)
    panel = Panel.allocate(e, traits, formats[0])

    def one_panel(index: Value) -> None:
        first = e.offset(e.i64(0), index, PANEL_BLOCKS)
        left = b.sub(group.steps, first)
        is_last = b.icmp_signed("<", left, e.i64(PANEL_BLOCKS))
        count = b.select(is_last, left, e.i64(PANEL_BLOCKS))
        unpacked = b.append_basic_block("unpacked")
        choice = b.switch(given, unpacked)
        for format_ in formats:
            block = b.append_basic_block(format_.name)
            choice.add_case(int(format_), block)
            b.position_at_end(block)
            to_come = e.offset(group.quants, b.add(first, count), format_.row_quant_bytes * rows)
            size = block_bytes(format_, rows)
            start = b.sub(to_come, b.mul(first, e.i64(size)))
            packed = packed_weights(e, traits, format_, group)
            panel.fill(e, fetching(e, packed, start, size), first, count)
            b.branch(unpacked)
        b.position_at_end(unpacked)
        weights = panel.weights(e)
        is_first = b.icmp_signed("==", index, e.i64(0))
        done = e.i64(0)
        for size in traits.tile_tokens:
            num_tiles = b.sdiv(b.sub(tokens, done), e.i64(size))

            def tile(number: Value, *, begin: Value = done, size: int = size) -> None:
                token = e.offset(begin, number, size)
                _add_tile(
                    e, traits, formats[0], [group], [weights], first, count, token, size,
                    is_first=is_first,
                )  # fmt: skip

            e.repeat_maybe(num_tiles, tile)
            done = e.offset(done, num_tiles, size)

    panels = b.sdiv(e.offset(group.steps, PANEL_BLOCKS - 1), e.i64(PANEL_BLOCKS))
    e.repeat_maybe(panels, one_panel)
    b.branch(after)
    b.position_at_end(after)
