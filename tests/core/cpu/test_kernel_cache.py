"""Kernels are compiled by a process of their own, once, and loaded from then on."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numba import types
from tests.core.cpu.small_kernels import DOUBLE, FAILING, KILLED, double, inner, outer

from skerry_core.runners.kernel_cache import CompilationError, load_kernels, omit_wrappers

ROOT = Path(__file__).resolve().parents[3]
COMPILING, LOADING = "compiling kernels for this CPU, once", "loading kernels"


@pytest.fixture(autouse=True)
def tests_are_found_by_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Told:
    """Progress as it was told: what, and how far each thing came."""

    def __init__(self) -> None:
        self.shares: dict[str, list[float]] = {}

    def __call__(self, what: str, share: float) -> None:
        self.shares.setdefault(what, []).append(share)


def test_compiled_once_and_then_loaded(tmp_path: Path) -> None:
    first, second = Told(), Told()
    load_kernels(DOUBLE, "any", tmp_path, first)
    assert first.shares == {COMPILING: [0.0, 1.0], LOADING: [0.0, 1.0]}
    assert double(21) == 42
    load_kernels(DOUBLE, "any", tmp_path, second)
    assert list(second.shares) == [LOADING]
    folder = DOUBLE.folder(tmp_path)
    assert (folder / "finished-any").exists()
    assert list(folder.glob("*/small_kernels.double-*.nbc"))


def test_the_code_that_is_loaded_is_the_code_on_disk(tmp_path: Path) -> None:
    """Another code has another folder, and what it supersedes is removed."""
    load_kernels(DOUBLE, "any", tmp_path, Told())
    changed = replace(DOUBLE, constants=(1,))
    assert changed.version() != DOUBLE.version()
    older = changed.folder(tmp_path)
    older.mkdir()
    (DOUBLE.folder(tmp_path) / "finished-any").unlink()
    load_kernels(DOUBLE, "any", tmp_path, Told())
    assert not older.exists()
    assert DOUBLE.folder(tmp_path).exists()


def test_only_one_of_several_compiles(tmp_path: Path) -> None:
    told = [Told(), Told()]
    threads = [
        threading.Thread(target=load_kernels, args=(DOUBLE, "any", tmp_path, progress))
        for progress in told
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(COMPILING in progress.shares for progress in told) == 1
    assert all(progress.shares[LOADING][-1] == 1.0 for progress in told)


def test_a_compiler_that_is_killed(tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match="ended by SIGKILL, as the system does when memory"):
        load_kernels(KILLED, "any", tmp_path, Told())
    assert not (KILLED.folder(tmp_path) / "finished-any").exists()


def test_a_compiler_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match="status 1: ValueError: no kernels for mips"):
        load_kernels(FAILING, "mips", tmp_path, Told())


def test_what_only_kernels_call_is_compiled_without_ways_in() -> None:
    assert {*DOUBLE.functions()} == {double, inner, outer}
    omit_wrappers(DOUBLE, {double, outer})
    outer.compile((types.int64,))
    assert ways_in(outer) == {"cpython", "cfunc"}
    assert ways_in(inner) == set()
    assert outer(20) == 41


def ways_in(kernel: Any) -> set[str]:
    """Which wrappers numba made of it, by the names of what it compiled."""
    (compiled,) = kernel.overloads.values()
    names = [function.name for function in compiled.library.get_defined_functions()]
    assert compiled.fndesc.mangled_name in names
    return {kind for kind in ("cpython", "cfunc") if any(kind in name for name in names)}
