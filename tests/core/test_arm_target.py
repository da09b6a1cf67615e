"""The Arm target, on a machine of another kind: its products compile to Arm's dot products."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import pytest
from llvmlite import ir
from numba import typeof

from skerry_core.kernels.emitter import I8, I32, I64, Emitter, Value, vector
from skerry_core.kernels.targets import TARGETS, traits_of

TRIPLE = "aarch64-unknown-linux-gnu"
TOKENS = 4


def products(*, signed: bool) -> str:
    """LLVM of a function that adds the products of one block: weights i8[8, rows, 4], activations
    i8[tokens, 8, 4] and sums i32[tokens, rows] at the addresses that it takes."""
    traits = traits_of(typeof(TARGETS["neondot"]))
    rows = traits.rows
    module = ir.Module("products")
    module.triple = TRIPLE
    kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
    function = ir.Function(module, kind, "products")
    e = Emitter(ir.IRBuilder(function.append_basic_block()))
    weights_at, activations_at, sums_at = function.args
    quad, words = vector(I8, 4 * rows), vector(I32, rows)

    def activations(t: int, j: int) -> Value:
        splat = e.load_splat(e.offset(activations_at, 8 * t + j, 4), I32, rows)
        return e.builder.bitcast(splat, quad)

    weights = [e.load(e.offset(weights_at, j, 4 * rows), quad) for j in range(8)]
    start = [e.load(e.offset(sums_at, t, 4 * rows), words) for t in range(TOKENS)]
    totals = traits.dot_block(e, weights, activations, start, signed=signed)
    for t, total in enumerate(totals):
        e.store(total, e.offset(sums_at, t, 4 * rows))
    e.builder.ret_void()
    return str(module)


@pytest.fixture(scope="module")
def machine() -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(TRIPLE)
    except RuntimeError as error:
        pytest.skip(f"this llvmlite compiles nothing for Arm: {error}")
    return target.create_target_machine(cpu="neoverse-n1", features="+dotprod", opt=3)


@pytest.mark.parametrize("signed", [False, True])
def test_products_become_dot_instructions(machine: llvm.TargetMachine, signed: bool) -> None:
    module = llvm.parse_assembly(products(signed=signed))
    module.verify()
    assembly = machine.emit_assembly(module)
    registers_of_rows = TARGETS["neondot"].rows // 4
    assert len(re.findall(r"\bsdot\b", assembly)) == 8 * TOKENS * registers_of_rows
    assert not re.search(r"\b(s|u)?mul", assembly)
