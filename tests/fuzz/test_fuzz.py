"""Every parser over its corpus, and in `make test-all` over what atheris finds from there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ROOT
from tests.fuzz.run import CORPUS
from tests.fuzz.targets import TARGETS

SECONDS = int(os.environ.get("SKERRY_FUZZ_SECONDS", "600"))  # of each parser
MIN_INPUTS = 500_000  # in ten minutes
SLOW = {"dns", "templates", "topology", "schemas", "websocket"}  # programs, an event loop: fewer
MAX_CORPUS_BYTES = 1 << 20
DONE = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - {"dns"}))
def test_the_corpus(name: str) -> None:
    """`dns` compiles its kernels with checks of bounds, which takes a minute: when fuzzed only."""
    run = TARGETS[name]()
    for file in sorted((CORPUS / name).iterdir()):
        run(file.read_bytes())


def test_the_corpus_is_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == TARGETS.keys()
    assert sum(file.stat().st_size for file in CORPUS.rglob("*")) < MAX_CORPUS_BYTES


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("name", TARGETS)
def test_fuzz(name: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install --group fuzz")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    path = os.pathsep.join([str(ROOT), subprocess_env["PYTHONPATH"]])
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--seconds", str(SECONDS)]
    done = subprocess.run(
        [*command, "--corpus", str(corpus)], cwd=tmp_path, capture_output=True, text=True,
        env=subprocess_env | {"PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    executed = DONE.search(done.stderr)
    assert executed is not None
    if SECONDS >= 600 and name not in SLOW:
        assert int(executed[1]) >= MIN_INPUTS
