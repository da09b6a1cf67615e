"""What the programs for a GPU share: parts with a budget of time, reported as soon as each is over.

Time on a GPU is short, and a fault of a kernel ends the process that it happens in. So parts run in
a process of their own, and where that ends, or a part hangs, another one goes on with the next.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.device.gpu_report import Row

ROOT = Path(__file__).resolve().parents[2]
SLACK = 40.0  # seconds that the last part may take more than there are
_FAULT = 3  # exit status of a process whose device answers no more
_PART_OF = "SKERRY_BENCH_PART_OF"  # set in the process that runs the parts


@dataclass(frozen=True)
class Part:
    """Something to measure."""

    name: str
    seconds: float  # that it takes at most on an H100; what is left must be as much
    measure: Callable[[], Sequence[Row]]


@dataclass(frozen=True)
class Program:
    """One that a person starts: `python -m MODULE`."""

    module: str
    about: str
    seconds: float  # it begins no part that would last longer, unless told otherwise
    parts: Callable[[bool], tuple[dict[str, str], Sequence[Part]]]
    """Prepare, dry or not, what is measured; return what the device is, and the parts. May raise
    NoGPUError."""


class NoGPUError(Exception):
    """There is none, and the run is not dry."""


def choose_device(*, is_dry: bool) -> None:
    """Have Triton's interpreter run the kernels where there is no GPU; before Triton is imported.

    Raises NoGPUError where the run is not dry.
    """
    import torch

    if torch.cuda.is_available():
        return
    if not is_dry:
        raise NoGPUError
    os.environ["TRITON_INTERPRET"] = "1"


def run(program: Program, arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; return an exit status, 1 where a part failed."""
    options = parsed(program, arguments)
    if _PART_OF in os.environ:
        return _run_parts(program, options)
    with _report_file(options.json) as path:
        return _supervise(program, list(sys.argv[1:] if arguments is None else arguments), path)


def parsed(program: Program, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what arguments say: `json`, `dry`, `only`, `skip`, `seconds`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program.module}", description=program.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--dry", action="store_true", help="tiny shapes; figures mean nothing")
    words: dict[str, Any] = {"metavar": "WORDS", "nargs": "+", "default": []}
    parser.add_argument("--only", **words, help="parts that have one of these in their names")
    parser.add_argument("--skip", **words, help="not those that have one of these")
    parser.add_argument(
        "--seconds", type=float, default=program.seconds,
        help="begin no part that would last longer (%(default)g)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def is_wanted(name: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    """Return whether a part is among those that were named, or not among those to skip."""
    return (not only or any(words in name for words in only)) and not any(
        words in name for words in skip
    )


# --- the process that a person started -----------------------------------------------------------


@contextmanager
def _report_file(wanted: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = wanted or Path(folder) / "report.json"
        path.unlink(missing_ok=True)  # of an earlier run
        yield path.absolute()


def _supervise(program: Program, arguments: list[str], path: Path) -> int:
    """Run the parts in other processes, until one of them came to the end."""
    command = [sys.executable, "-m", program.module, *arguments, "--json", str(path)]
    env = {**os.environ, _PART_OF: str(time.time())}
    paths = [str(ROOT), str(ROOT / "core"), env.get("PYTHONPATH", "")]  # nothing is installed
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    while True:
        status = subprocess.run(command, env=env, check=False).returncode
        report = json.loads(path.read_text()) if path.exists() else {}
        if (running := report.get("running")) is None and status != _FAULT:
            return status
        if running is not None:
            _fail(report, running, f"the process ended with {status}")
            _write(path, report)


# --- the process that runs parts -----------------------------------------------------------------


def _run_parts(program: Program, options: argparse.Namespace) -> int:
    begun = float(os.environ[_PART_OF])
    try:
        device, parts = program.parts(options.dry)
    except NoGPUError:
        print(f"{program.module} measures a CUDA device, and there is none; --dry tries the script "
              "without one", file=sys.stderr)  # fmt: skip
        return 2
    report: dict[str, Any] = {"device": device, "dry": options.dry, "parts": {}, "failures": {}}
    if options.json.exists():
        report = json.loads(options.json.read_text())
    for part in parts:
        if part.name in report["parts"] or part.name in report["failures"]:
            continue
        if not is_wanted(part.name, options.only, options.skip):
            continue
        left = options.seconds - (time.time() - begun)
        if part.seconds > left and not options.dry:
            _fail(report, part.name, f"needs {part.seconds:g} s, {max(left, 0):.0f} are left")
        else:
            report["running"] = part.name
            _write(options.json, report)
            _run_part(part, report, left)
        report["running"], report["seconds"] = None, time.time() - begun
        _write(options.json, report)
        if not _is_device_well():
            return _FAULT
    return 1 if report["failures"] else 0


def _run_part(part: Part, report: dict[str, Any], left: float) -> None:
    begun = time.perf_counter()
    most = min(2 * part.seconds, max(left, 0.0)) + SLACK  # one that hangs is not to cost the rest
    faulthandler.dump_traceback_later(most, exit=True)
    try:
        rows = part.measure()
        for row in rows:
            print(row.line(), flush=True)
    except Exception as error:  # the other parts are worth having
        _fail(report, part.name, f"{type(error).__name__}: {error}")
    else:
        seconds = time.perf_counter() - begun
        report["parts"][part.name] = {"seconds": seconds, "rows": [asdict(row) for row in rows]}
    finally:
        faulthandler.cancel_dump_traceback_later()


def _is_device_well() -> bool:
    """Return whether the device answers, its memory free again: after some faults none does."""
    gc.collect()  # a failure's frames hold what it had
    if (torch := sys.modules.get("torch")) is None or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # graphs' memory is not for others until then
    except RuntimeError as error:
        print(f"the device is lost: {error}", file=sys.stderr)
        return False
    return True


def _fail(report: dict[str, Any], name: str, reason: str) -> None:
    report["failures"][name] = reason
    report["running"] = None
    print(f"{name}: left out: {reason}", file=sys.stderr, flush=True)


def _write(path: Path, report: dict[str, Any]) -> None:
    """Replace the report: who is ended meanwhile leaves the one before."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1))
    part.replace(path)
