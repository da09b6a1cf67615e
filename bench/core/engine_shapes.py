"""`bench.engine --shape NAME`: the engine at the sizes that people run, against llama.cpp.

A file of random weights in a public shape is written on first use (`shaped_files`), packed once,
and run by both, interleaved round by round. llama.cpp is built for this CPU, but without AMX, as
prebuilt wheels are; with `--amx` a build with it is measured too.

Bytes are those that a step reads: all matrices, of experts those that its rows chose, and KV. They
are held against reading the packed weights through in the same round, with as many threads; of
one thread both by processor time, which other processes do not change.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core import profile_step
from bench.measuring import machine, stats
from bench.measuring.quiet import Watch
from bench.subjects import engine_targets
from bench.subjects.engine_cases import BANDWIDTH, OURS, PEER, Case
from bench.subjects.engine_targets import Model, Target
from bench.subjects.models import home
from bench.subjects.peers import CACHE, ROOT, WITHOUT_AMX, Worker, python_of
from bench.subjects.shaped_files import SHAPES, shaped_file
from skerry_core.runners.numba_cpu import NumbaRunner

PEER_AMX = "llama.cpp with AMX"
READ = "packed weights, read through"
CONTEXT = 16  # tokens before a row decodes
ONE = Case("decode b1", "decode", 1, CONTEXT, 24, "random")
EIGHT = Case("decode b8", "decode", 8, CONTEXT, 8, "random")
MANY = Case("decode b32", "decode", 32, CONTEXT, 6, "random")
PREFILL = Case("prefill 512", "prefill", 1, 512, 0)
PROFILED = ((1, 1), (8, 1), (1, 128))  # rows, and tokens of each, of the phases' tables
OVERHEAD = 300  # MiB that a process may take beside its file and KV
START, CPU, MEMORY, PACKING = (
    "first token of a 20-token prompt, from the process's beginning",
    "processor time of that start",
    "resident memory beside file and KV",
    "memory of packing beside the mapped file",
)


@dataclass(frozen=True)
class Plan:
    """What is measured of a shape, and what is wanted."""

    cases: tuple[Case, ...]
    targets: tuple[Target, ...]


def plan_of(shape: str) -> Plan:
    targets = [Target(ONE.name, 1, PEER), Target(f"{ONE.name}: {BANDWIDTH}", 85)]
    targets += [Target(PREFILL.name, 2, PEER), Target(MEMORY, OVERHEAD, at_most=True)]
    targets += [Target(PACKING, 1024, at_most=True)]
    if SHAPES[shape].config.experts is None:
        targets += [Target(EIGHT.name, 2, PEER)]
        if shape == "llama-3.1-8b":
            targets += [Target(START, 2, at_most=True)]
        return Plan((ONE, EIGHT, PREFILL), tuple(targets))
    targets += [Target(EIGHT.name, 1.2, PEER), Target(MANY.name, 2, PEER)]
    return Plan((ONE, EIGHT, MANY, PREFILL), tuple(targets))


class ShapeMeasurement:
    """Figures of all rounds."""

    def __init__(self, path: Path, workers: dict[str, Worker], threads: int) -> None:
        self.cells: dict[str, stats.Cell] = {}
        self.foreign: list[float] = []  # other processes' load beside samples, in cores
        self.model = Model(**workers[OURS].call(op="about")["model"])
        self._path = path
        self._workers = workers
        self._threads = threads
        self._salt = 0

    def add(self, name: str, unit: str, system: str, value: float) -> None:
        self.cells.setdefault(name, stats.Cell(name, unit)).add(system, value)

    def take(self, case: Case, order: list[str]) -> None:
        """One sample of everybody, with the bytes and products that ours is bound by."""
        pids = [worker.pid for worker in self._workers.values()]
        bandwidth = float(self._workers[OURS].call(op="read")["GB/s"])
        self.add(f"{READ}, before {case.name}", "GB/s", OURS, bandwidth)
        for name in order:
            self._salt += 1
            with Watch(pids) as watch:
                answer = self._workers[name].call(**case.request(self._salt))
            self.foreign.append(watch.foreign)
            rate = case.tokens / float(answer["seconds"])
            self.add(case.name, "tok/s", name, rate)
            if name == OURS and case.op == "decode":
                seconds = float(answer["cpu" if self._threads == 1 else "seconds"])
                self._add_bytes(case, case.steps / seconds, answer, bandwidth)

    def _add_bytes(
        self, case: Case, steps: float, answer: dict[str, Any], bandwidth: float
    ) -> None:
        busy = float(answer["experts"])
        if busy:
            self.add(f"{case.name}: experts of a layer that were read", "", OURS, busy)
        context = case.batch * (case.context + case.steps // 2)
        read = engine_targets.step_bytes(self.model, context, busy) * steps / 1e9
        self.add(f"{case.name}: read", "GB/s", OURS, read)
        self.add(f"{case.name}: {BANDWIDTH}", "%", OURS, 100 * read / bandwidth)

    def start(self, folder: Path) -> None:
        """A warm start by itself, with all cores."""
        told = start_once(self._path, folder)
        self.add(START, "s", OURS, told["first_token"])
        self.add(CPU, "s", OURS, told["cpu"])
        size = self._path.stat().st_size / 2**20
        self.add(MEMORY, "MiB", OURS, told["rss"] - size - told["kv"])
        self.add("the same, beside packed weights and KV", "MiB", OURS,
                 told["rss"] - told["packed"] - told["kv"])  # fmt: skip


def start_once(path: Path, folder: Path) -> dict[str, float]:
    """What a process that starts on a file tells of itself."""
    command = [sys.executable, "-m", "bench.workers.shaped_start", str(path), str(folder)]
    done = subprocess.run(
        [*command, str(os.cpu_count())], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def workers_of(
    path: Path, folder: Path, threads: int, plan: Plan, *, amx: bool
) -> dict[str, Worker]:
    """Ours and the peers, each in a process of its own."""
    most = max(case.batch for case in plan.cases)
    sizes = [str(each) for each in (most + 1, 64, 640)]
    ours = [sys.executable, "-m", "bench.workers.skerry_engine", str(path), str(folder)]
    script = str(ROOT / "bench/workers/llama_cpp_engine.py")
    workers = {OURS: Worker(OURS, [*ours, str(threads)])}
    peers = {PEER: WITHOUT_AMX}
    if amx:
        peers[PEER_AMX] = "llama-cpp-python"
    for name, peer in peers.items():
        command = [str(python_of(peer)), script, str(path), str(threads), *sizes]
        workers[name] = Worker(name, command)
    return workers


def phase_tables(path: Path, folder: Path) -> list[Table]:
    """Where a step's time goes, on one thread, phase by phase."""
    most = max(rows * tokens for rows, tokens in PROFILED)
    runner = NumbaRunner.open(
        path, num_blocks=most, max_step_tokens=most, threads=1, cache_dir=folder
    )
    runner.warm_up(lambda _what, _share: None)
    bandwidth = max(machine.read_rate(runner._packed.mapped[0], 1) for _ in range(3))
    tables = []
    for rows, tokens in PROFILED:
        batch = profile_step.make_batch(runner, rows, CONTEXT + tokens, tokens)
        runner.execute(batch)
        tables.append(profile_step.phase_table(runner, batch, steps=3, bandwidth=bandwidth))
    runner.close()
    return tables


def run(options: argparse.Namespace) -> int:
    """Measure a shape; see the command's help."""
    console, threads = Console(), options.threads
    plan, folder = plan_of(options.shape), home() / "cache"
    with console.status("writing the file"):
        path = shaped_file(options.shape, CACHE / "shapes", options.layers)
    description = machine.describe()
    console.print(" · ".join(f"{key} {value}" for key, value in description.items()))
    size, layers = path.stat().st_size / 1e9, path.stem.rpartition("-")[2]
    console.print(f"{options.shape}: {layers} layers, {size:.2f} GB, {threads} threads")
    with console.status("packing it"):
        for packed in folder.glob(f"{path.stem}-*.packed"):
            packed.unlink()  # what packing takes is measured, too
        packing = start_once(path, folder)
    workers = workers_of(path, folder, threads, plan, amx=options.amx)
    measurement = ShapeMeasurement(path, workers, threads)
    measurement.add(PACKING, "MiB", OURS, packing["anonymous"])
    rounds = 2 if options.quick else 7
    for number in range(rounds + 1):
        order = list(workers)[:: 1 if number % 2 else -1]
        with console.status(f"round {number} of {rounds} (round 0 warms up)"):
            for case in plan.cases:
                short = replace(case, steps=min(case.steps, 2), context=min(case.context, 64))
                measurement.take(case if number else short, order)
            if number:
                measurement.start(folder)
        if not number:
            measurement.cells = {PACKING: measurement.cells[PACKING]}
            measurement.foreign.clear()
    for worker in workers.values():
        worker.close()
    tables = phase_tables(path, folder)
    cells = list(measurement.cells.values())
    peers = [name for name in workers if name != OURS]
    console.print(stats.table(f"{options.shape}, medians", cells, OURS, peers))
    console.print(engine_targets.table(plan.targets, measurement.cells, OURS))
    for table in tables:
        console.print(table)
    foreign = statistics.median(measurement.foreign)
    console.print(f"other processes' load beside a sample: {foreign:.1f} cores (median)")
    report = {"machine": description, "shape": options.shape, "layers": int(layers)}
    report |= {"file": path.stat().st_size, "threads": threads, "foreign": measurement.foreign}
    stats.write(options.json, report | {"rows": stats.rows(cells)})
    return 0
