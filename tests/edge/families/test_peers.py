"""What our readers find in a turn, SGLang's own detectors find in it too.

Theirs look for marks by expressions, so that no text here holds one, and take a template's Python
`None` for a text, so that there is none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from tests.edge.families.spoken_turns import turn
from tests.edge.families.transcripts import CASES, TOOLS, Turn, model
from tests.vocabularies import HOME

REQUIREMENT = "sglang==0.5.23"
FOLDERS = ("sglang/srt/function_call/", "sglang/srt/parser/")
PEER = Path(__file__).with_name("peer_sglang.py")
SECONDS = 300
TURNS = 300
LETTERS = 'abc üé日"{}[]:,\\'

DETECTORS = {
    "hermes-3": "hermes_detector",
    "qwen2.5": "qwen25_detector",
    "qwen3": "qwen25_detector",
    "llama-3.1": "llama32_detector",
    "gpt-oss": "gpt_oss_detector",
    "deepseek-v3.1": "deepseekv31_detector",
    "deepseek-r1": "deepseekv3_detector",
    "ministral-3": "mistral_detector",
    "qwen3-coder": "qwen3_coder_detector",
    "qwen3.5": "qwen3_coder_detector",
    "glm-4.6": "glm4_moe_detector",
    "glm-4.7": "glm47_moe_detector",
    "kimi-k2": "kimik2_detector",
    "gemma-4": "gemma4_detector",
}


@pytest.fixture(scope="module")
def sglang() -> Path:
    """The folders of its wheel that are needed, fetched once."""
    kept = HOME / "peers" / REQUIREMENT
    if kept.exists():
        return kept
    with TemporaryDirectory(dir=_made(kept.parent)) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        pip += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", folder]
        try:
            subprocess.run([*pip, REQUIREMENT], check=True, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            if os.environ.get("SKERRY_TOOLS") == "required":
                pytest.fail(f"no {REQUIREMENT}: {error}")
            pytest.skip(f"no {REQUIREMENT}: {error}")
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            members = [each for each in archive.namelist() if each.startswith(FOLDERS)]
            archive.extractall(Path(folder) / "kept", members)
        (Path(folder) / "kept").rename(kept)
    return kept


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def plain(rng: Random) -> str:
    return "x" + "".join(rng.choices(LETTERS, k=rng.randint(0, 9))).strip() + "x"


def plain_turns(name: str, rng: Random) -> list[Turn]:
    """Turns with calls, and plain texts in their arguments."""
    of, turns = model(name, has_tokens=CASES[name].are_tokens[-1]), list[Turn]()
    while len(turns) < TURNS:
        made = turn(rng, of)
        calls = [
            (tool, {key: _plain(value, rng) for key, value in arguments.items()})
            for tool, arguments in made.calls
            if arguments.get("maybe", 0) is not None
        ]
        if calls:
            text = plain(rng) if made.text else ""
            turns.append(Turn("", text, calls))
    return turns


def _plain(value: object, rng: Random) -> object:
    match value:
        case str():
            return plain(rng)
        case list():
            return [_plain(each, rng) for each in value]
        case dict():
            return {key: _plain(each, rng) for key, each in value.items() if key != "b"}
        case _:
            return value


def _as_it_speaks(output: str) -> str:
    """A message of gpt-oss with its header as the model mostly writes it, which SGLang reads."""
    head = r" ?to=(\S+?)<\|channel\|>commentary json"
    said = re.sub(head, r"<|channel|>commentary to=\1 <|constrain|>json", output)
    return f"<|start|>assistant{said}<|call|>"


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTORS)
def test_sglang_finds_the_same_calls(sglang: Path, name: str) -> None:
    of, rng = model(name, has_tokens=CASES[name].are_tokens[-1]), Random(name)
    turns, outputs = plain_turns(name, rng), list[str]()
    for made in turns:
        output, is_open = of.output(made)
        assert of.read([output], is_open=is_open).calls
        if of.family.reasoning is not None and of.family.messages is None:
            output = output.rpartition(of.family.reasoning.end)[2]  # another parser takes thoughts
        output = of.family.spelled(output).strip()
        outputs.append(_as_it_speaks(output) if of.family.messages else output)
    asked = {"detector": DETECTORS[name], "tools": TOOLS, "outputs": outputs}
    found = subprocess.run(
        [sys.executable, str(PEER), str(sglang)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    for made, output, (text, calls) in zip(turns, outputs, json.loads(found.stdout), strict=True):
        ours = of.read([of.marked(output)], is_open=False)
        assert [(called, json.loads(given)) for called, given in ours.calls] == made.calls
        assert [(called, given) for called, given in calls] == made.calls, output
        assert text.strip() == made.text, output
