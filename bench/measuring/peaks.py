"""What this CPU's arithmetic can do at most: the kernels' instructions, on registers alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import typeof, types

from skerry_core.kernels.simd.emitter import F32, I8, I32, Emitter, vector
from skerry_core.kernels.simd.memory import address
from skerry_core.kernels.simd.numba_math import intrinsic, kernel
from skerry_core.kernels.simd.targets import Traits, choose_target, traits_of

_ROUNDS = 200_000
_TRIES = 10


def _num_sums(traits: Traits) -> int:
    """Independent ones: as many as hide an instruction's latency and still fit the registers."""
    return traits.tile_tokens[0] * 3 // 2


@intrinsic
def _int8_products(typing_context: Any, target: Any, data: Any, rounds: Any) -> Any:
    """Each round 32 products per row for each of `_num_sums` tokens."""
    traits = traits_of(target)
    quad = 4 * traits.rows

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        _, data, rounds = arguments
        weights = [e.load(e.offset(data, j, quad), vector(I8, quad)) for j in range(8)]
        values = [e.load(e.offset(data, 8 + j, quad), vector(I8, quad)) for j in range(8)]
        zeros = [e.constant(vector(I32, traits.rows), 0)] * _num_sums(traits)

        def one_round(index: Any, sums: list[Any]) -> list[Any]:
            found: list[Any]
            [found] = traits.dot_block(e, [weights], lambda _, j: values[j], [sums], signed=False)
            return found

        for j, total in enumerate(e.repeat(rounds, zeros, one_round)):
            e.store(total, e.offset(data, j, quad))
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), codegen


@intrinsic
def _float_products(typing_context: Any, target: Any, data: Any, rounds: Any) -> Any:
    """Each round a fused multiply-add on a vector of floats for each of `_num_sums`."""
    traits = traits_of(target)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        e = Emitter(builder)
        _, data, rounds = arguments
        floats = vector(F32, traits.rows)
        factor = e.load(data, floats)
        sums = [e.load(e.offset(data, j, 64), floats) for j in range(_num_sums(traits))]

        def one_round(index: Any, sums: list[Any]) -> list[Any]:
            return [e.fma(factor, factor, total) for total in sums]

        for j, total in enumerate(e.repeat(rounds, sums, one_round)):
            e.store(total, e.offset(data, j, 64))
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), codegen


@kernel
def _run_int8(target: Any, data: int, rounds: int) -> None:
    _int8_products(target, data, rounds)


@kernel
def _run_floats(target: Any, data: int, rounds: int) -> None:
    _float_products(target, data, rounds)


def int8_peak(threads: int) -> float:
    """1e9 products of 8-bit integers, summed in 32 bits, per second."""
    return _rate(_run_int8, 32, threads)


def float_peak(threads: int) -> float:
    """1e9 fused multiply-adds of float32 per second."""
    return _rate(_run_floats, 1, threads)


def _rate(run: Callable[..., None], products_per_lane: int, threads: int) -> float:
    target = choose_target()
    traits = traits_of(typeof(target))
    products = products_per_lane * traits.rows * _num_sums(traits)
    data = [np.zeros(4096, np.uint8) for _ in range(threads)]
    run(target, address(data[0]), 1)
    best = float("inf")
    for _ in range(_TRIES):
        workers = [
            threading.Thread(target=run, args=(target, address(each), _ROUNDS)) for each in data
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - start)
    return round(products * _ROUNDS * threads / best / 1e9, 1)
