"""docs/gpu.md: its commands are those that the programs take and fit into their minutes; its
budgets are CI's."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench import gpu_aot
from bench.device.gpu_program import Part, Program, is_wanted, parsed

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text()
COMMAND = re.compile(
    r"^\*\*(\d)\. .*?, (\d) minutes\.\*\*.*?```sh\n(.*?)```", re.DOTALL | re.MULTILINE
)
COMMANDS = {int(n): (60 * int(m), code.splitlines()) for n, m, code in COMMAND.findall(PAGE)}
LINES = [line for _, lines in COMMANDS.values() for line in lines if "-m bench." in line]


@pytest.fixture(scope="module")
def parts() -> Mapping[str, Sequence[Part]]:
    """The parts of each program, named as on a GPU."""
    from bench import gpu_profile, gpu_sweep
    from bench.device import gpu_figures
    from bench.device.gpu_sizes import DRY, FULL
    from bench.device.gpu_subject import Subject

    sizes = replace(DRY, batches=FULL.batches, streams=FULL.streams, prefill=FULL.prefill)
    subject = Subject(sizes, torch.device("cpu"))
    return {
        "bench.gpu": gpu_figures.parts(subject),
        "bench.gpu_profile": gpu_profile.parts_of(subject),
        "bench.gpu_sweep": gpu_sweep.parts_of(subject),
    }


def chosen(line: str, parts: Mapping[str, Sequence[Part]]) -> tuple[float, list[Part]]:
    """The seconds that a command has, and the parts that it runs."""
    words = shlex.split(line)
    module = words[words.index("-m") + 1]
    program: Program = importlib.import_module(module).PROGRAM
    options = parsed(program, words[words.index("-m") + 2 :])
    for word in (*options.only, *options.skip):
        assert any(word in part.name for part in parts[module]), f"{word} is in no name"
    return options.seconds, [
        part for part in parts[module] if is_wanted(part.name, options.only, options.skip)
    ]


def test_six_commands_take_half_an_hour() -> None:
    assert list(COMMANDS) == [1, 2, 3, 4, 5, 6]
    assert sum(seconds for seconds, _ in COMMANDS.values()) <= 28 * 60


@pytest.mark.parametrize("line", LINES)
def test_a_command_has_time_for_all_that_it_runs(
    line: str, parts: Mapping[str, Sequence[Part]]
) -> None:
    seconds, wanted = chosen(line, parts)
    assert wanted
    assert sum(part.seconds for part in wanted) <= seconds


@pytest.mark.parametrize("number", COMMANDS)
def test_programs_end_within_the_minutes_of_their_command(
    number: int, parts: Mapping[str, Sequence[Part]]
) -> None:
    most, lines = COMMANDS[number]
    seconds = sum(chosen(line, parts)[0] for line in lines if "-m bench." in line)
    seconds += sum(
        float(re.findall(r"^timeout (\d+)", line)[0]) for line in lines if "pytest" in line
    )
    assert seconds <= most - 10  # to start and to end


def test_what_is_named_is_there() -> None:
    follows = PAGE[PAGE.index("## What follows") : PAGE.index("## Instructions")]
    sources = "".join(
        path.read_text()
        for folder in ("core/skerry_core/kernels", "core/skerry_core/runners/torch", "bench")
        for path in (ROOT / folder).rglob("*.py")
    )
    for name in re.findall(r"`(_\w+|find_peaks|[A-Z]\w+)`", follows):
        assert re.search(rf"\b{name}\b", sources), name
    for file in re.findall(r"`((?:kernels|runners)/[\w/]+\.py)`", follows):
        assert (ROOT / "core" / "skerry_core" / file).exists(), file


def budgets() -> str:
    """The table of the page, as `bench/gpu_aot.py` has it."""
    rows = [
        f"| {variant} | {', '.join(f'`{kernel}` {most}' for kernel, most in kernels.items())} | "
        f"{gpu_aot.PER_WEIGHT.get(variant, '')} |".replace("|  |", "| |")
        for variant, kernels in gpu_aot.BUDGETS.items()
    ]
    return "\n".join(["| launched for | instructions | for each weight |", "|---|---|---|", *rows])


def test_budgets_are_those_that_ci_checks() -> None:
    assert budgets() in PAGE, "python -m tests.docs.test_gpu prints what it needs"


if __name__ == "__main__":
    sys.stdout.write(f"{budgets()}\n")
