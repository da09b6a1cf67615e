"""The examples of README and docs run, as they stand, against a running platform."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.tools import put_on_path

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LIMIT = 120  # seconds; of one page's examples


@pytest.fixture(scope="module")
def environ(
    default_model: ModelFiles,
    embedding_model: ModelFiles,
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[dict[str, str]]:
    """The environment of a shell in which somebody said `skerry up --detach`."""
    kept = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry")).resolve()
    home = tmp_path_factory.mktemp("home")
    for name in ("models", "cache"):
        (kept / name).mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(kept / name)
    environ = os.environ | {"SKERRY_HOME": str(home)}
    skerry = [sys.executable, "-m", "skerry"]
    subprocess.run([*skerry, "up", "--detach", "--port", "0"], env=environ, check=True)
    try:
        exports = subprocess.run(
            [*skerry, "env"], env=environ, check=True, capture_output=True, text=True
        ).stdout
        yield environ | dict(re.findall(r"^export (\w+)='?(.*?)'?$", exports, re.MULTILINE))
    finally:
        subprocess.run([*skerry, "down"], env=environ, check=True)


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """Each block of a language, with the number of lines before it."""
    text = (ROOT / page).read_text()
    return [
        (text.count("\n", 0, found.start(2)), found[2])
        for found in BLOCK.finditer(text)
        if found[1] == language
    ]


def one_program(examples: list[tuple[int, str]]) -> str:
    """All blocks in order, each on the lines where the page has it, so that errors point there."""
    program = ""
    for lines_before, code in examples:
        program += "\n" * (lines_before - program.count("\n")) + code
    return program


def run(command: list[str], environ: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/sdk.md"])
def test_python_examples(page: str, environ: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / Path(page).name
    program.write_text(one_program(blocks(page, "python")))
    assert run([sys.executable, "-W", "error", str(program)], environ).strip()


def test_curl_example(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(monkeypatch, {"curl": "curl"})
    [command] = [code for _, code in blocks("README.md", "sh") if code.startswith("curl")]
    printed = run(["bash", "-c", command], environ)
    assert printed.startswith('data: {"response":')
    assert printed.endswith("data: [DONE]\n\n")
