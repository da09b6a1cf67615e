"""Triton's kernels compiled for a GPU that is not there, and what they take of it.

The interpreter checks what kernels mean, not that they compile; a compiler needs no GPU. Kernels
are launched as the runner does, in bfloat16 and the shapes of Llama-3.1-8B, over a driver that
stands for the GPU and launches nothing.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
import triton.backends.nvidia as nvidia
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from skerry_core.kernels.torch.lossless import TILE_OUTPUTS, TILE_WORDS, encoded
from skerry_core.kernels.torch.quantized import (
    FP8_CAPABILITY,
    NARROW_DTYPES,
    Narrow,
    Rounded,
    narrowed,
)
from skerry_core.kernels.torch.torch_sampling import COUNT, DRAW, MASS
from skerry_core.kernels.triton import attention as triton_attention
from skerry_core.kernels.triton import blocks as triton_blocks
from skerry_core.kernels.triton import few_products, triton_ops, triton_sampling
from skerry_core.kernels.triton import matmul as triton_matmul
from skerry_core.kernels.triton.lossless import decoded
from skerry_core.kernels.triton.narrow_products import OUTPUTS

HEADS, KV_HEADS, WIDTH, HIDDEN, VOCAB = 32, 8, 128, 4096, 128_256
TOKENS, NUM_BLOCKS = 16, 4

LOOP_WEIGHTS = {
    ("_product_12", 32): 8 * TILE_OUTPUTS * TILE_WORDS,
    ("_product_narrow", 128): OUTPUTS * 16 * 32,
}
"""Weights that a program of so many threads multiplies in a turn of its loop, in decode steps."""

_OBJDUMP = Path(nvidia.__file__).parent / "bin" / "cuobjdump"  # Triton brings it, beside ptxas
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(\S.*?);", re.MULTILINE)
_BUFFERS = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x")
_BRANCH = re.compile(r"\bBRA\b.*?0x([0-9a-f]+)")


@dataclass(frozen=True)
class Usage:
    """What a compiled kernel takes."""

    kernel: str
    variant: str  # what it was launched for
    registers: int  # of a thread
    spilled: int  # bytes of a thread that no register holds
    shared: int  # bytes of a program
    instructions: int  # in all, taken or not
    loop: int  # instructions of the longest loop, without those of loops in it
    threads: int  # of a program
    buffers: int  # of what its loops load ahead; one: each load is waited for


class Absent:
    """A driver whose GPU is not there."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def _compiling(capability: int, compiled: Callable[[Any], None]) -> Generator[None]:
    """Have launches compile for a capability, and hand over what they give."""
    cast(Any, driver).set_active(Absent(capability))
    function: Any = jit.JITFunction
    run = function.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        result = run(kernel, *args, grid=grid, warmup=True, **options)
        compiled(result)
        return result

    function.run = compile_only
    try:
        yield
    finally:
        function.run = run


def usages(capability: int, variants: list[str] | None = None) -> Iterator[Usage]:
    """Compile the kernels of these variants, or of all that a capability has."""
    launches = launches_of(capability)
    for variant in variants or launches:
        found: list[Any] = []
        with _compiling(capability, found.append):
            launches[variant]()
        seen = set[bytes]()
        for compiled in found:
            if (cubin := compiled.asm["cubin"]) not in seen:
                seen.add(cubin)
                yield _usage(compiled, variant)


def _usage(compiled: Any, variant: str) -> Usage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()

        def dump(what: str) -> str:
            command = [str(_OBJDUMP), what, file.name]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        usage, code = _USAGE.search(dump("-res-usage")), dump("-sass")
    assert usage is not None
    registers, stack, local = map(int, usage.groups())
    instructions = _INSTRUCTION.findall(code)
    return Usage(
        compiled.metadata.name, variant, registers, stack + local, compiled.metadata.shared,
        len(instructions), _longest_loop(instructions), 32 * compiled.metadata.num_warps,
        max(map(int, _BUFFERS.findall(compiled.asm["ttgir"])), default=0),
    )  # fmt: skip


def _longest_loop(instructions: list[tuple[str, str]]) -> int:
    """Return how many instructions the longest loop has itself, of (address, text)."""
    places = {int(address, 16): place for place, (address, _) in enumerate(instructions)}
    loops = list[range]()
    for place, (_, text) in enumerate(instructions):
        branch = _BRANCH.search(text)
        begin = place if branch is None else places.get(int(branch[1], 16), place)
        if begin < place:
            loops.append(range(begin, place + 1))
    longest = max(loops, key=len, default=range(0))
    inside = {place for each in loops if each != longest for place in each}
    return len(set(longest) - inside)


def launches_of(capability: int) -> dict[str, Callable[[], None]]:
    """Return what launches each variant's kernels."""
    half, single = torch.bfloat16, torch.float32
    launches: dict[str, Callable[[], None]] = {
        "decode": lambda: launch_attention(half, is_decode=True),
        "attention": lambda: launch_attention(half),
        "operations": lambda: launch_operations(half),
        "few rows": lambda: launch_few_products(1, capability),
        "few rows, 16": lambda: launch_few_products(16, capability),
        "weights in int8": lambda: launch_narrow_products("int8", (1, 65)),
        "weights in int8, 16 rows": lambda: launch_narrow_products("int8", (16,)),
        "weights in int8, 64 rows": lambda: launch_narrow_products("int8", (32, 64)),
        "weights in int4": lambda: launch_narrow_products("int4", (1, 65)),
        "weights in int4, 16 rows": lambda: launch_narrow_products("int4", (16,)),
        "weights in int4, 64 rows": lambda: launch_narrow_products("int4", (32, 64)),
        "sampling": launch_sampling,
        "weights in bf12": launch_lossless_products,
        "windows and norms": lambda: launch_attention(half, window=4096, is_normed=True),
        "float32": lambda: launch_attention(single),
        "operations, float32": lambda: launch_operations(single),
        "KV in int8": lambda: launch_attention(half, narrow="int8"),
    }
    if capability >= 10 * FP8_CAPABILITY[0] + FP8_CAPABILITY[1]:
        launches["KV in fp8"] = lambda: launch_attention(half, narrow="fp8")
        launches["weights in fp8"] = lambda: launch_narrow_products("fp8", (1, 65))
        launches["weights in fp8, 64 rows"] = lambda: launch_narrow_products("fp8", (16, 32, 64))
    return launches


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def launch_attention(
    dtype: torch.dtype,
    *,
    window: int | None = None,
    is_decode: bool = False,
    is_normed: bool = False,
    narrow: Narrow | None = None,
) -> None:
    pool = torch.zeros(2, 2, NUM_BLOCKS, KV_HEADS, 64, WIDTH, dtype=dtype)
    scales = None if narrow is None else torch.zeros(pool.shape[:-1])
    stored = pool if narrow is None else pool.to(NARROW_DTYPES[narrow])
    kv, own = stored[0], None if scales is None else scales[0]
    heads = torch.zeros(TOKENS, HEADS + 2 * KV_HEADS, WIDTH, dtype=dtype)
    cos, out = torch.zeros(128, WIDTH // 2), heads[:, :HEADS].contiguous()
    tiles = triton_attention.Tiles(ints(2), ints(2), ints(2), longest=1)
    where = ints(TOKENS), ints(TOKENS)
    norm = heads[0, 0] if is_normed else None
    triton_ops.rotate_and_store(heads, kv, *where, (cos, cos), q_norm=norm, k_norm=norm, scales=own)
    pieces = triton_attention.ContextPieces(
        ints(3), ints(3), ints(3, 4), ints(2), ints(1), num_parts=3
    )
    split = heads, kv, where[0], tiles, pieces, out
    triton_attention.attend_split(*split, window=window, scales=own)
    if is_decode:
        return
    whole = heads, kv, ints(2, 9), where[0], tiles, out
    triton_attention.attend_whole(*whole, window=window, scales=own)
    blocks = pool.movedim(2, 0).contiguous()
    addresses = torch.zeros(NUM_BLOCKS, dtype=torch.int64)
    triton_blocks.gather(stored, ints(NUM_BLOCKS), addresses, dtype, scales)
    triton_blocks.scatter(stored, ints(NUM_BLOCKS), addresses, dtype, scales)
    triton_blocks.checksums(blocks)
    triton_blocks.collect(addresses, blocks)


def launch_operations(dtype: torch.dtype) -> None:
    x = torch.zeros(TOKENS, HIDDEN, dtype=dtype)
    triton_ops.rms_norm(x, x[0], 1e-5)
    triton_ops.add_rms_norm(x, x, x[0], 1e-5)
    triton_ops.swiglu(x)
    for tokens in (1, 64, 65):
        triton_matmul.invariant_linear(x[:1].expand(tokens, -1), x, None)


def launch_few_products(tokens: int, capability: int) -> None:
    x = torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16)
    weight = torch.zeros(64, HIDDEN, dtype=torch.bfloat16)
    overlaps = capability >= 90
    with patch.object(few_products, "overlaps", lambda device: overlaps):
        few_products.normed_linear(x, x[0], 1e-5, weight, weight[:, 0].contiguous())
        few_products.normed_swiglu(x, x[0], 1e-5, weight)
        few_products.linear_onto(x, weight, None, x[:, :64].contiguous())


def launch_lossless_products() -> None:
    x = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16)
    weight = encoded(torch.zeros(64, HIDDEN, dtype=torch.bfloat16))
    for tokens in (1, 64):
        triton_matmul.linear(x[:1].expand(tokens, -1), weight, None)
    decoded(weight, torch.bfloat16)


def launch_narrow_products(narrow: Rounded, token_counts: tuple[int, ...]) -> None:
    x = torch.zeros(1, HIDDEN, dtype=torch.bfloat16)
    weight = narrowed(torch.zeros(64, HIDDEN), narrow)
    for tokens in token_counts:
        triton_matmul.linear(x.expand(tokens, -1), weight, None)


def launch_sampling() -> None:
    floats, longs = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    adjusted = torch.zeros(2, VOCAB)
    triton_ops.feed(ints(2), ints(2), longs)
    triton_sampling.choose(
        adjusted.bfloat16(), floats, floats, ints(2), floats, longs, longs, ints(2), ints(2),
        searches=(COUNT, MASS, DRAW), adjusted=adjusted,
    )  # fmt: skip
