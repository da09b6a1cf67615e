"""Triton's kernels compiled for a GPU that is not there, and what they take of it.

The interpreter checks what kernels mean, not that they compile; a compiler needs no GPU. Kernels
are launched as the runner does over a driver that stands for the GPU and launches nothing.
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

import triton.backends.nvidia as nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from bench.device.kernel_launches import HALVED, launches_of
from skerry_core.kernels.torch.lossless import TILE_OUTPUTS, TILE_WORDS
from skerry_core.kernels.triton.narrow_products import OUTPUTS

_LOOP_WEIGHTS = {
    ("_product_12", 32): 8 * TILE_OUTPUTS * TILE_WORDS,
    ("_product_narrow", 128): OUTPUTS * 16 * 32,
}
"""Weights that a program of so many threads multiplies in a turn of its loop, in decode steps;
half of them where a scale is of 16."""

_OBJDUMP = Path(nvidia.__file__).parent / "bin" / "cuobjdump"  # Triton brings it, beside ptxas
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(\S.*?);", re.MULTILINE)
_BUFFERS = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x")
_WAIT = "ACQBULK"  # for the kernel before
_REQUEST = re.compile(r"\bLDG|\bCCTL\.E\.PF")  # of what lies in memory
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
    ahead: int  # loads and prefetches before it waits for the kernel before

    @property
    def per_weight(self) -> float | None:
        """Return a loop's instructions for each weight, of products in decode steps."""
        weights = _LOOP_WEIGHTS.get((self.kernel, self.threads))
        if weights is None:
            return None
        return self.loop * self.threads / (weights // 2 if HALVED in self.variant else weights)


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
        _requests_ahead([text for _, text in instructions]),
    )  # fmt: skip


def _requests_ahead(instructions: list[str]) -> int:
    """Count requests of memory before a kernel waits, if it does."""
    wait = next((place for place, text in enumerate(instructions) if _WAIT in text), 0)
    return sum(_REQUEST.search(text) is not None for text in instructions[:wait])


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
