"""The assembly that makes bf16 of bytes, executed step by step: the value of every byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")

from skerry_core.kernels.triton.packed_bf16 import FP8, INT8, UINT4

pytestmark = pytest.mark.triton

BYTES = torch.arange(256).to(torch.uint8)
ONE = 0x3F80


def halves(register: int) -> torch.Tensor:
    """Return the two bf16 of a register."""
    bits = [register & 0xFFFF, register >> 16]
    return torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def fused(a: int, b: int, c: int) -> int:
    """Multiply and add halves, rounded once; exact in float64."""
    told = (halves(a).double() * halves(b).double() + halves(c).double()).bfloat16()
    low, high = (told.view(torch.int16).int() & 0xFFFF).tolist()
    return int(low | high << 16)


def permuted(a: int, b: int, selector: int) -> int:
    """Choose bytes of two registers, as `prmt` does where no sign is copied."""
    source = (a | b << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(source[selector >> 4 * place & 7] for place in range(4)), "little")


OPERATIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "prmt.b32": permuted,
    "lop3.b32": lambda a, b, c, table: a & b | c if table == 0xEA else -1,  # the table of that
    "fma.rn.bf16x2": fused,
}


def executed(assembly: str, num_outputs: int, word: int) -> list[int]:
    """Return what the registers of outputs hold in the end, of one input."""
    registers = {f"${num_outputs}": word}
    for line in assembly.strip("{}\n").replace("\n", "").split(";"):
        name, _, rest = line.strip().partition(" ")
        if name in ("", ".reg"):
            continue
        target, *operands = (operand.strip() for operand in rest.split(","))
        values = [registers[o] if o in registers else int(o, 0) for o in operands]
        registers[target] = OPERATIONS[name](*values)
    return [registers[f"${place}"] for place in range(num_outputs)]


def widened(assembly: str, num_outputs: int) -> torch.Tensor:
    """Return the outputs bf16[n, 256] of all bytes, four at a time."""
    columns = []
    for word in BYTES.view(torch.int32).tolist():
        outputs = [
            halves(register) for register in executed(assembly, num_outputs, word & 0xFFFFFFFF)
        ]
        columns.append(torch.cat(outputs).view(-1, 4))
    return torch.cat(columns, dim=1)


def test_every_int8_is_itself() -> None:
    values, ones = widened(INT8, 4)
    assert torch.equal(values, BYTES.view(torch.int8).bfloat16())
    assert torch.equal(ones, torch.ones_like(ones))


def test_every_fp8_is_itself() -> None:
    values, ones = widened(FP8, 4)
    expected = BYTES.view(torch.float8_e4m3fn).bfloat16()
    is_number = ~expected.isnan()
    assert is_number.sum() == 254
    assert torch.equal(values[is_number], expected[is_number])
    assert torch.equal(values.signbit()[is_number], expected.signbit()[is_number])
    assert torch.equal(ones, torch.ones_like(ones))


def test_both_halves_of_every_byte_are_themselves() -> None:
    low, high, ones = widened(UINT4, 6)
    assert torch.equal(low, (BYTES & 15).bfloat16())
    assert torch.equal(high, (BYTES >> 4).bfloat16())
    assert torch.equal(ones, torch.ones_like(ones))
