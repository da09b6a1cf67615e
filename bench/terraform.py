"""The Terraform provider: how soon it answers, what it needs, and 200 pools.

    python -m bench.terraform [--pools N] [--rounds N] [--json FILE]

Real Terraform, the provider as `skerry terraform install` puts it, a `skerry control` of its own.
The pools have no model, so nothing is started for them: what is measured is Terraform, the provider
and the control plane's API. "alone" is `terraform version`, which starts no provider; "provider
start" is `terraform providers schema`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measuring import machine
from bench.measuring.quiet import Watch
from skerry_terraform.install import COMMAND, SOURCE, install, installed_plugin

POOLS, ROUNDS = 200, 3
SECONDS = 300  # of any command
LOOK_SECONDS = 0.01  # between looks at the plugin's memory
CONFIGURATION = """\
terraform {{
  required_providers {{
    skerry = {{ source = "{source}" }}
  }}
}}

resource "skerry_region" "fra" {{
  name = "fra"
  iata = "FRA"
}}

resource "skerry_pool" "p" {{
  count  = {pools}
  name   = "p${{count.index}}"
  region = skerry_region.fra.name
  role   = "hybrid"
}}
"""


@dataclass(frozen=True)
class Sample:
    """One command. `peak_bytes` of the largest plugin process; None where there was none."""

    what: str
    seconds: float
    cpu_seconds: float  # of Terraform and the plugin: other processes lengthen only `seconds`
    peak_bytes: int | None
    foreign: float  # others' load meanwhile, in cores


class Bench:
    """A folder with a home, a configuration and a running control plane."""

    def __init__(self, folder: Path, pools: int) -> None:
        self._folder = folder
        binary = shutil.which(os.environ.get("TERRAFORM", "terraform"))
        if binary is None:
            raise SystemExit("There is no `terraform` in PATH; or name it in TERRAFORM.")
        self._binary = binary
        install(folder, installed_plugin())
        (folder / "main.tf").write_text(CONFIGURATION.format(source=SOURCE, pools=pools))
        self._environ = os.environ | {
            "HOME": str(folder),
            "SKERRY_HOME": str(folder / "skerry"),
            "TF_CLI_CONFIG_FILE": os.devnull,
            "CHECKPOINT_DISABLE": "1",
        }

    @contextlib.contextmanager
    def control_plane(self) -> Generator[int]:
        """Its process id."""
        with (self._folder / "control.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "skerry", "control", "--port", "0", "--own"],
                env=self._environ, stdin=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        try:
            while "is ready at" not in (self._folder / "control.log").read_text():
                if process.poll() is not None:
                    raise SystemExit((self._folder / "control.log").read_text())
                time.sleep(LOOK_SECONDS)
            yield process.pid
        finally:
            process.terminate()
            process.wait()

    def sample(self, what: str, *arguments: str, control: int) -> Sample:
        """One command, which has to succeed."""
        start, cpu_start = time.perf_counter(), _children_seconds()
        with Watch([control]) as watch:
            process = subprocess.Popen(
                [self._binary, *arguments],
                cwd=self._folder, env=self._environ, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            peaks = Peaks(process.pid)
            _, told = process.communicate(timeout=SECONDS)
            seconds = time.perf_counter() - start
        if process.returncode:
            raise SystemExit(told.decode())
        cpu_seconds = _children_seconds() - cpu_start
        foreign = max(0.0, watch.foreign - cpu_seconds / seconds)
        return Sample(what, seconds, cpu_seconds, peaks.stop(), foreign)


def _children_seconds() -> float:
    """CPU seconds of all commands so far, and of the plugins that they have waited for."""
    return sum(os.times()[2:4])


class Peaks:
    """The most memory that a child of a process had resident, looked at until `stop`."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> int | None:
        self._stop.set()
        self._thread.join()
        return self._peak or None

    def _look(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            for child in self._children():
                self._peak = max(self._peak, _peak_of(child))

    def _children(self) -> list[str]:
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{self._parent}/task").glob("*/children")
            return [child for task in tasks for child in task.read_text().split()]
        return []


def _peak_of(pid: str) -> int:
    """Bytes; 0 before the child is the plugin: until then it shares its parent's memory."""
    with contextlib.suppress(OSError):
        if COMMAND.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return 0
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def run(pools: int, rounds: int) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as folder:
        bench = Bench(Path(folder), pools)
        with bench.control_plane() as control:
            bench.sample("init", "init", control=control)
            for _ in range(rounds):
                yield bench.sample("alone", "version", control=control)
                yield bench.sample(
                    "provider start", "providers", "schema", "-json", control=control
                )
                yield bench.sample(
                    f"apply {pools} pools", "apply", "-auto-approve", control=control
                )
                for _ in range(2):
                    yield bench.sample(f"plan {pools} pools, no change", "plan", control=control)
                yield bench.sample(
                    f"destroy {pools} pools", "destroy", "-auto-approve", control=control
                )


def report(samples: list[Sample]) -> Table:
    table = Table("what", "s", "least..greatest", "CPU s", "plugin's peak, MB", "foreign load")
    for what in dict.fromkeys(sample.what for sample in samples):
        these = [sample for sample in samples if sample.what == what]
        seconds = [sample.seconds for sample in these]
        peak = max((sample.peak_bytes or 0 for sample in these), default=0)
        table.add_row(
            what,
            f"{statistics.median(seconds):.2f}",
            f"{min(seconds):.2f}..{max(seconds):.2f}",
            f"{statistics.median(sample.cpu_seconds for sample in these):.2f}",
            f"{peak / 1e6:.0f}" if peak else "",
            f"{statistics.median(sample.foreign for sample in these):.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="The Terraform provider.", allow_abbrev=False)
    parser.add_argument("--pools", type=int, default=POOLS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    args = parser.parse_args()
    samples = list(run(args.pools, args.rounds))
    Console().print(f"{args.pools} pools, {args.rounds} rounds", report(samples))
    if args.json is not None:
        facts: dict[str, Any] = {"machine": machine.describe()}
        facts["samples"] = [asdict(sample) for sample in samples]
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
