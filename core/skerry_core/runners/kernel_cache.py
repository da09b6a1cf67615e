"""Compiled kernels on disk: made once, by processes of their own, and loaded by every later start.

LLVM keeps some 175 MB for itself once it has compiled anything; a process that only loads stays
small, on the first start too.

numba sees neither edits in modules that a kernel imports nor another version of LLVM, so folders
are named after all that decides the code:

    <cache>/numba/<set>-<CPU>/<code>/   what numba keeps; `finished-<variant>` when it is whole
        claims-<variant>/               who compiles which kernel, while they are compiled
    <cache>/numba/<set>-<CPU>/lock      held meanwhile
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.dispatcher import Dispatcher
from numba.np import linalg as _linalg

import skerry_core
from skerry_core.config import ConfigError
from skerry_core.kernels.simd.targets import NUMBA_CONFIG
from skerry_core.runner import Progress

linalg: Any = _linalg

UNCALLED = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""What functions that only kernels call are compiled without, in the process that compiles: ways in
from Python and from C, a fifth of the time of compiling."""

_loading = threading.Lock()  # numba's cache directory is global to the process


class CompilationError(ConfigError):
    """The kernels could not be compiled; the message says how the compiler ended."""


@dataclass(frozen=True, slots=True)
class KernelSet:
    """Kernels that are compiled and kept together. A constant of a module, named by `reference`."""

    name: str  # of its folder
    reference: str  # "package.module:CONSTANT", where another process finds this set
    sources: tuple[ModuleType, ...]  # modules and packages whose code ends up in the kernels
    constants: tuple[object, ...]  # from elsewhere that do; distinguished by their repr
    kernels: Callable[[str], Mapping[str, tuple[Any, tuple[Any, ...]]]]
    """By variant (a CPU target, or whatever the set has): each kernel and its argument types."""
    processes: int = 1  # that share the work of compiling it, where there are cores for them

    def version(self) -> str:
        """Hash of the code: the same version gives the same bits."""
        digest = hashlib.blake2b(repr(self.constants).encode(), digest_size=8)
        for name, path in self._files():
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def folder(self, cache_dir: Path) -> Path:
        """Return where this code, compiled by this numba for this CPU, is kept."""
        cpu = (
            NUMBA_CONFIG.CPU_NAME or llvm.get_host_cpu_name(),
            NUMBA_CONFIG.CPU_FEATURES or llvm.get_host_cpu_features().flatten(),
        )
        # numba forgets what it kept when a file moves or its time changes.
        files = [(str(path), path.stat().st_mtime_ns) for _, path in self._files()]
        code = (self.version(), numba.__version__, llvmlite.__version__, files)
        return cache_dir / "numba" / f"{self.name}-{_short_hash(cpu)}" / _short_hash(code)

    def functions(self) -> Iterator[Dispatcher]:
        """Yield the jitted functions of the sources, as far as these are imported."""
        for name, _ in self._files():
            module = sys.modules.get(name.removesuffix(".__init__"))
            for value in vars(module).values() if module else ():
                if isinstance(value, Dispatcher):
                    yield value

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield name and file of every module."""
        for source in self.sources:
            if not hasattr(source, "__path__"):
                yield source.__name__, _path(source)
                continue
            for path in sorted(_path(source).parent.glob("*.py")):
                yield f"{source.__name__}.{path.stem}", path


def load_kernels(kernel_set: KernelSet, variant: str, cache_dir: Path, progress: Progress) -> None:
    """Have every kernel of a set ready to be called, compiled once per cache, code and CPU.

    Takes a second where they are on disk. Raises CompilationError.
    """
    folder = kernel_set.folder(cache_dir)
    if not _finished(folder, variant).exists():
        with _lock(folder.parent / "lock", progress):
            if not _finished(folder, variant).exists():
                _compile_apart(kernel_set, variant, cache_dir, folder, progress)
                _finished(folder, variant).touch()
                _remove_superseded(folder)
    compile_here(kernel_set, variant, folder, lambda share: progress("loading kernels", share))


def compile_here(
    kernel_set: KernelSet, variant: str, folder: Path, progress: Callable[[float], None]
) -> None:
    """Load every kernel from a folder, or compile it in this process and keep it there."""
    kernels = kernel_set.kernels(variant)
    with _loading:
        _import_arrays_without_scipy()
        NUMBA_CONFIG.CACHE_DIR = str(folder)
        for done, (kernel, types) in enumerate(kernels.values()):
            progress(done / len(kernels))
            kernel.enable_caching()
            kernel.compile(types)
    progress(1.0)


def _import_arrays_without_scipy() -> None:
    """Import numba's array functions, which import SciPy where it is installed.

    That takes a third of a second of every start, for products of matrices that no kernel has.
    """
    found = linalg.ensure_blas
    linalg.ensure_blas = _no_blas
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = found


def _no_blas() -> None:
    raise ImportError("not looked for")


# Compiling in other processes


def main(reference: str, variant: str, cache_dir: str) -> None:
    """Compile the kernels of a set that no other process has claimed: one of several does this.

    Prints, after each, how many there are in all.
    """
    module, _, name = reference.partition(":")
    kernel_set: KernelSet = getattr(importlib.import_module(module), name)
    folder = kernel_set.folder(Path(cache_dir))
    NUMBA_CONFIG.CACHE_DIR = str(folder)
    kernels = kernel_set.kernels(variant)
    omit_wrappers(kernel_set, {kernel for kernel, _ in kernels.values()})
    for name, (kernel, types) in kernels.items():
        try:
            (_claims(folder, variant) / name).mkdir()
        except FileExistsError:
            continue
        kernel.enable_caching()
        kernel.compile(types)
        sys.stdout.write(f"{len(kernels)}\n")  # fails once the parent is gone, which ends us
        sys.stdout.flush()


def omit_wrappers(kernel_set: KernelSet, called: set[Any]) -> None:
    """Have functions of a set that are not `called` from outside compiled without ways in."""
    for function in kernel_set.functions():
        if function not in called:
            compiler = cast(Any, function)._compiler  # numba has no public name for it
            # The options are one dict for all functions of a decorator: never changed in place.
            compiler.targetoptions = compiler.targetoptions | UNCALLED


def _compile_apart(
    kernel_set: KernelSet, variant: str, cache_dir: Path, folder: Path, progress: Progress
) -> None:
    """Fill a folder. Sources that change meanwhile have another one, without claims to make."""
    claims = _claims(folder, variant)
    shutil.rmtree(claims, ignore_errors=True)  # of a start that was cut short
    claims.mkdir(parents=True)
    command = [sys.executable, "-m", "skerry_core.runners.compiler"]
    command += [kernel_set.reference, variant, str(cache_dir)]
    what = "compiling kernels for this CPU, once"
    progress(what, 0.0)
    count = min(kernel_set.processes, len(os.sched_getaffinity(0)))
    with ExitStack() as stack:
        reading, writing = os.pipe()
        reports = os.fdopen(reading)
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        try:
            processes = [
                stack.enter_context(
                    subprocess.Popen(
                        command,
                        env=_environment(),
                        stdin=subprocess.DEVNULL,
                        stdout=writing,
                        stderr=file,
                    )
                )
                for file in errors
            ]
        finally:
            os.close(writing)
        stack.enter_context(reports)  # closed before they are waited for: then they end
        for done, total in enumerate(reports, 1):
            progress(what, done / int(total))
        for process, file in zip(processes, errors, strict=True):
            if process.wait():
                file.seek(0)
                said = file.read().decode(errors="replace").strip().splitlines()
                raise CompilationError(_why(process.returncode, said[-1] if said else ""))
    shutil.rmtree(claims, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Return this process's environment, where this package is found even if not installed."""
    root = str(_path(skerry_core).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _why(status: int, said: str) -> str:
    if status < 0:
        end = f"was ended by {signal.Signals(-status).name}"
        if status == -signal.SIGKILL:
            end += ", as the system does when memory runs out"
    else:
        end = f"failed with status {status}"
    return f"the process that compiles the kernels {end}" + (f": {said}" if said else "")


# Folders


def _path(module: ModuleType) -> Path:
    return Path(str(module.__file__))


def _short_hash(of: object) -> str:
    return hashlib.blake2b(repr(of).encode(), digest_size=8).hexdigest()


def _finished(folder: Path, variant: str) -> Path:
    return folder / f"finished-{variant}"


def _claims(folder: Path, variant: str) -> Path:
    return folder / f"claims-{variant}"


def _remove_superseded(folder: Path) -> None:
    """Remove what other versions of the code left for this CPU."""
    for other in folder.parent.iterdir():
        if other.is_dir() and other != folder:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def _lock(path: Path, progress: Progress) -> Generator[None]:
    """Hold a lock: one process compiles; the others wait, and then find its work."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process to compile the kernels", 0.0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
