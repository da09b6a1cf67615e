"""Targets of other machines: their products compile to the instructions that they are named for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import llvmlite.binding as llvm
import pytest
from llvmlite import ir
from numba import typeof

from skerry_core.kernels.simd.emitter import I8, I32, I64, Emitter, Value, vector
from skerry_core.kernels.simd.targets import TARGETS, traits_of
from skerry_core.weights.codebooks import MXFP4_VALUES

TOKENS, QUADS = 4, 8


@dataclass(frozen=True)
class Machine:
    """What a target is compiled for, and what multiplies there: so many rows at once."""

    triple: str
    cpu: str
    features: str
    instruction: str
    rows: int
    look_up: str  # in a table of 16 bytes
    looked_up: int  # bytes at once


_X86 = "x86_64-unknown-linux-gnu"
MACHINES = {
    "neondot": Machine(
        "aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod", "sdot", 4, "tbl", 16
    ),
    "avx512vnni": Machine(_X86, "icelake-server", "", "vpdpbusd", 16, "vpshufb", 64),
    "avx2": Machine(_X86, "haswell", "", "vpmaddubsw", 8, "vpshufb", 32),
}


def products(target: str, triple: str, *, signed: bool) -> str:
    """LLVM of a function that adds the products of one block: weights i8[groups, 8, rows, 4],
    activations i8[tokens, 8, 4] and sums i32[groups, tokens, rows] at the addresses that it
    takes."""
    traits = traits_of(typeof(TARGETS[target]))
    rows = traits.rows
    module = ir.Module("products")
    module.triple = triple
    kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
    function = ir.Function(module, kind, "products")
    e = Emitter(ir.IRBuilder(function.append_basic_block()))
    weights_at, activations_at, sums_at = function.args
    quad, words = vector(I8, 4 * rows), vector(I32, rows)

    def activations(t: int, j: int) -> Value:
        splat = e.load_splat(e.offset(activations_at, QUADS * t + j, 4), I32, rows)
        return e.builder.bitcast(splat, quad)

    groups = range(traits.target.panel_groups)
    weights = [
        [e.load(e.offset(weights_at, QUADS * g + j, 4 * rows), quad) for j in range(QUADS)]
        for g in groups
    ]
    start = [
        [e.load(e.offset(sums_at, TOKENS * g + t, 4 * rows), words) for t in range(TOKENS)]
        for g in groups
    ]
    totals = traits.dot_block(e, weights, activations, start, signed=signed)
    for number, total in enumerate(total for each in totals for total in each):
        e.store(total, e.offset(sums_at, number, 4 * rows))
    e.builder.ret_void()
    return str(module)


def looking_up(target: str, triple: str) -> str:
    """LLVM of a function that replaces i8[4 rows] at its address by what they stand for."""
    traits = traits_of(typeof(TARGETS[target]))
    module = ir.Module("looking up")
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64]), "look_up")
    e = Emitter(ir.IRBuilder(function.append_basic_block()))
    codes = e.load(function.args[0], vector(I8, 4 * traits.rows))
    e.store(traits.look_up(e, codes, MXFP4_VALUES), function.args[0])
    e.builder.ret_void()
    return str(module)


def assembly_of(source: str, machine: Machine) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        compiler = llvm.Target.from_triple(machine.triple)
    except RuntimeError as error:
        pytest.skip(f"this llvmlite compiles nothing for {machine.triple}: {error}")
    module = llvm.parse_assembly(source)
    module.verify()
    made = compiler.create_target_machine(cpu=machine.cpu, features=machine.features, opt=3)
    assembly: str = made.emit_assembly(module)
    return assembly


@pytest.mark.parametrize("target", MACHINES)
def test_tables_are_looked_up_in_one_instruction(target: str) -> None:
    machine = MACHINES[target]
    assembly = assembly_of(looking_up(target, machine.triple), machine)
    found = re.findall(rf"\b{machine.look_up}\b", assembly)
    assert len(found) == 4 * TARGETS[target].rows // machine.looked_up


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("target", MACHINES)
def test_products_become_one_instruction_each(target: str, signed: bool) -> None:
    machine = MACHINES[target]
    assembly = assembly_of(products(target, machine.triple, signed=signed), machine)
    registers_of_rows = TARGETS[target].rows // machine.rows
    found = re.findall(rf"\b{machine.instruction}\b", assembly)
    groups = TARGETS[target].panel_groups
    assert len(found) == QUADS * TOKENS * registers_of_rows * groups
    assert not re.search(r"\b(s|u)?mul|\bvpmull", assembly)
