"""What the package promises as a whole: exports, types, a light import, a helpful command."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest

import skerry
from skerry import tasks
from skerry.wire import TextGenerationInput
from skerry.wire.encoders import ClassificationInput, EmbeddingsInput, RankingInput
from skerry.wire.openai import ChatRunInput

ROOT = Path(__file__).parents[2]
SDK = ROOT / "sdk"


def test_all_is_what_is_public() -> None:
    assert all(hasattr(skerry, name) for name in skerry.__all__)  # brings in those that come late
    public = {
        name
        for name, value in vars(skerry).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert set(skerry.__all__) - {"__version__"} == public
    assert skerry.__all__ == sorted(skerry.__all__)


def test_every_error_is_exported() -> None:
    for kind in skerry.SkerryError.by_code.values():
        if kind.__module__ == "skerry.errors":
            assert getattr(skerry, kind.__name__) is kind


TYPES = """
from typing import Any, assert_type
from skerry import AI, AsyncAI, AsyncStream, Chunk, Result, Stream
from skerry.tasks import ClassificationInputs, Embeddings, Label, Model, Ranking, TextGeneration

def blocking(ai: AI, maybe: bool) -> None:
    result = ai.run("m", {"prompt": "x"})
    assert_type(result, TextGeneration)
    text: str = result["response"]
    assert_type(result.usage.total_tokens, int)
    vectors = ai.run("m", {"text": ["x", "y"], "pooling": "cls"})
    assert_type(vectors, Embeddings)
    assert_type(vectors.data, list[list[float]])
    ranking = ai.run("m", {"query": "x", "contexts": [{"text": "y"}], "top_k": 1})
    assert_type(ranking, Ranking)
    assert_type(ranking.response[0].score, float)
    labels = ai.run("m", ClassificationInputs(text="x"))
    assert_type(labels, list[Label])
    asked: dict[str, Any] = {}
    assert_type(ai.run("m", asked), Result | Any)
    for more in (
        ai.run("m", {"prompt": "x", "lora": "a", "options": {"rejectIfBusy": True}}),
        ai.run("m", {"messages": [], "n": 2, "logprobs": True, "ignore_eos": True}),
    ):
        assert_type(more, TextGeneration)
    assert_type(ai.run("m", {"text": "x", "options": {"strict": True}}), Embeddings)
    assert_type(ai.run("m", {"prompt": "x", "stream": True}), Stream)
    assert_type(ai.models(search="x"), list[Model])
    assert_type(ai.gateway("g").run("m", {"prompt": "x"}), TextGeneration)
    tokens: int = result.usage.total_tokens
    binary = ai.run("m", b"audio", timeout=3)
    assert isinstance(binary, bytes)
    binary.decode()
    stream = ai.run("m", {"prompt": "x"}, stream=True, session_affinity="s")
    assert_type(stream, Stream)
    for chunk in stream:
        assert_type(chunk, Chunk)
        assert_type(chunk.response, str)
    assert_type(ai.run("m", asked, stream=maybe), Stream | Result | Any)
    ai.run("m", {}, max_retry=3)  # type: ignore[call-overload]
    ai.run("m", "text")  # type: ignore[call-overload]
    ai.run("m", {"promt": "typo"})  # type: ignore[dict-item]
    ai.run("m", {"prompt": 5})  # type: ignore[dict-item]
    ai.run("m", {"prompt": "x", "temprature": 0})  # type: ignore[dict-item]
    ai.run("m", {"promt": "typo"}, stream=True)  # type: ignore[dict-item]
    ai.run("m", {"prompt": 5}, stream=maybe)  # type: ignore[dict-item]
    ai.run("m", {"query": "x", "contexts": ["y"]})  # type: ignore[dict-item]

async def asynchronous(ai: AsyncAI) -> None:
    assert_type(await ai.run("m", {"prompt": "x"}, max_retries=0), TextGeneration)
    await ai.run("m", {"promt": "typo"})  # type: ignore[dict-item]
    await ai.run("m", {"prompt": 5}, stream=True)  # type: ignore[dict-item]
    stream = await ai.run("m", {"prompt": "x"}, stream=True)
    assert_type(stream, AsyncStream)
    async for chunk in stream:
        assert_type(chunk.response, str)
"""


def test_users_see_the_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPES)
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {SDK}\n")
    cache = ROOT / ".mypy_cache" / "users"
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", cache, program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert (SDK / "skerry" / "py.typed").exists()


def test_pyright_sees_the_same_types(tmp_path: Path) -> None:
    """Where mypy is told to expect an error, pyright has one, and nowhere else."""
    program = tmp_path / "program.py"
    program.write_text(TYPES)
    config = {
        "extraPaths": [str(SDK)],
        "enableTypeIgnoreComments": False,
        "include": [str(program)],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    found = json.loads(checked.stdout)["generalDiagnostics"]
    lines = {each["range"]["start"]["line"] for each in found if each["severity"] == "error"}
    expected = {i for i, line in enumerate(TYPES.splitlines()) if "# type: ignore" in line}
    assert lines == expected, checked.stdout


def test_types_of_inputs_know_every_field() -> None:
    """A field that the platform takes and the types lack would make its result Any."""
    fields = {
        name for kind in (TextGenerationInput, ChatRunInput) for name in kind.__struct_fields__
    }
    assert fields - {"model", "stream"} == set(get_type_hints(tasks.TextGenerationInputs))
    for kind, inputs in (
        (
            EmbeddingsInput,
            (tasks.EmbeddingInputs, tasks.QueryInputs, tasks.ContextInputs, tasks.RankingInputs),
        ),
        (RankingInput, (tasks.RankingInputs,)),
        (ClassificationInput, (tasks.ClassificationInputs,)),
    ):
        known = {name for each in inputs for name in get_type_hints(each)}
        assert set(kind.__struct_fields__) <= known


def test_importing_it_drags_nothing_along() -> None:
    """The SDK loads httpx's world and nothing else, so it is as fast to import as httpx."""
    program = "import sys, anyio, httpx; before = set(sys.modules); import skerry; " + (
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    path = f"import sys; sys.path.insert(0, {str(SDK)!r}); "
    loaded = subprocess.run(
        [sys.executable, "-c", path + program], capture_output=True, text=True, check=True
    ).stdout.split()
    third_party = set(loaded) - set(sys.stdlib_module_names)
    assert third_party == {"skerry"}


def test_hints_install_from_the_repository() -> None:
    """Skerry is on no package index: another's package may have its name there."""
    assert "since Skerry is on no package index yet" in (ROOT / "README.md").read_text()
    folders = ("core", "edge", "infra", "regions", "sdk")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = [
        line
        for path in sources
        for line in path.read_text().splitlines()
        if re.search(r"pip install [\"']?skerry", line)
    ]
    assert len(sources) > 500
    assert [line[:11] for line in named] == ['[ -x "$p" ]']  # its bytes are in people's lock files


def packages_of(extra: str) -> set[str]:
    """What `pip install "skerry[EXTRA]"` asks for, without versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = set[str]()
    for requirement in project["optional-dependencies"][extra]:
        name, _, others = requirement.partition(";")[0].rstrip("]").partition("[")
        if name == "skerry":
            found |= {package for other in others.split(",") for package in packages_of(other)}
        else:
            found.add(re.split("[>=]", name)[0].strip())
    return found


def test_an_extra_brings_what_its_role_needs_and_no_more() -> None:
    heavy = {"numba", "torch", "jax", "llguidance", "safetensors", "gguf"}
    assert not packages_of("edge") & (heavy | {"dnspython"})
    assert "dnspython" not in packages_of("platform")
    assert {"dnspython", "numba", "starlette"} <= packages_of("dns") <= packages_of("all")
    assert packages_of("platform") & heavy == {"numba", "llguidance"}


def run_command(tmp_path: Path, cli: str) -> subprocess.CompletedProcess[str]:
    """`python -m skerry` where the platform's command line is `cli`."""
    package = tmp_path / "skerry_cli"
    package.mkdir()
    (package / "__init__.py").write_text(cli)
    return subprocess.run(
        [sys.executable, "-m", "skerry"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SDK}"},
    )


@pytest.mark.parametrize(
    "cli", ["import no_such_extra", "def main() -> int:\n    import no_such_extra"]
)
def test_the_command_says_what_to_install(tmp_path: Path, cli: str) -> None:
    done = run_command(tmp_path, cli)
    assert done.returncode == 2
    assert "no module 'no_such_extra'" in done.stderr
    assert 'pip install ".[platform]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_command_hides_no_bug(tmp_path: Path) -> None:
    done = run_command(tmp_path, "import skerry_cli.gone")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_the_command_hands_over(tmp_path: Path) -> None:
    assert run_command(tmp_path, "def main() -> int:\n    return 7").returncode == 7
