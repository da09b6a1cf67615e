"""An agent's turns with Anthropic's client, the real tokenizer and the real model: each token that
is read, written or computed, against an endless cache; through pressure, and a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anthropic
import jinja2
import pytest
from tests.core.engine.test_pinning import EndlessCache
from tests.e2e.command import MODEL, ROOT, Skerry, new_home
from tokenizers import Tokenizer

from skerry_core.config import BLOCK_SIZE
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

POOL = 48 * BLOCK_SIZE  # tokens: an account may keep 12 blocks
FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
SYSTEM = "You are careful, and you answer in one word. " * 20
SAID = "The tests of the third folder fail since the change of yesterday evening. " * 4


class Prompts:
    """Token ids of conversations, by the model's own template and tokenizer."""

    def __init__(self, files: ModelFiles) -> None:
        assert files.chat_template is not None
        self._template = jinja2.Template(files.chat_template)
        self._tokenizer = Tokenizer.from_file(str(files.tokenizer))

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, turns: list[str]) -> str:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": said} for n, said in enumerate(turns)]
        system = {"role": "system", "content": SYSTEM}
        return self._template.render(messages=[system, *messages], add_generation_prompt=True)


class Agent:
    """Sends its turns with rolling breakpoints, behind a billing line that changes; what it reads
    from the cache is the same at an answer's start and end."""

    def __init__(self, client: anthropic.Anthropic, numbers: Iterator[int]) -> None:
        self._client, self._numbers = client, numbers

    def ask(self, turns: list[str], *, is_kept: bool = True, is_billed: bool = True) -> Any:
        billing = f"x-anthropic-billing-header: cc_version=2.1.117; cch={next(self._numbers):05x};"
        roles = ("user", "assistant")
        messages: list[Any] = [
            {"role": roles[n % 2], "content": [{"type": "text", "text": said}]}
            for n, said in enumerate(turns)
        ]
        system: Any = [{"type": "text", "text": billing}, {"type": "text", "text": SYSTEM}]
        if is_kept:
            system[1]["cache_control"] = HOUR
            messages[-1]["content"][0]["cache_control"] = FIVE
        told: list[Any] = [*self._client.messages.create(
            model=MODEL, max_tokens=1, system=system[not is_billed :], messages=messages,
            stream=True,
        )]  # fmt: skip
        start, end = told[0].message.usage, told[-2].usage
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            assert getattr(start, name) == getattr(end, name), name
        return start


def home_of(parent: Path, files: ModelFiles) -> Skerry:
    """A home that has the compiled kernels of others, and KV of its own."""
    skerry = new_home(parent, files)
    (skerry.home / "cache").mkdir()
    shared = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry")) / "cache"
    for each in shared.iterdir() if shared.is_dir() else ():
        if each.name != "kv":
            (skerry.home / "cache" / each.name).symlink_to(each.resolve())
    return skerry


@contextmanager
def running(skerry: Skerry, runner: str, numbers: Iterator[int]) -> Generator[Agent]:
    skerry.up("--kv-tokens", str(POOL), runner=runner)
    try:
        config = json.loads((skerry.home / "config.json").read_text())
        with anthropic.Anthropic(
            auth_token=config["api_token"], base_url=config["url"], max_retries=0
        ) as client:
            yield Agent(client, numbers)
    finally:
        assert skerry("down", "--timeout", "5").returncode == 0


@pytest.mark.parametrize("runner", ["toy", pytest.param("numba", marks=pytest.mark.slow)])
def test_an_agents_turns_read_what_an_endless_cache_would(
    tmp_path: Path, default_model: ModelFiles, runner: str
) -> None:
    """To the toy model computing is always cheaper than a file: it reads none after a restart."""
    prompts, endless, numbers = Prompts(default_model), EndlessCache(), count(1)
    skerry = home_of(tmp_path, default_model)
    turns: list[str] = []
    head = len(prompts.ids(prompts.text([""]).partition("<|im_end|>\n<|im_start|>assistant")[0]))
    with running(skerry, runner, numbers) as agent:
        for number in range(4):
            turns += ["Yes."] * (number > 0) + [f"{number}: {SAID}"]
            ids = prompts.ids(prompts.text(turns))
            read, whole = endless.read(ids), len(ids) // BLOCK_SIZE * BLOCK_SIZE
            for_an_hour = max(0, head // BLOCK_SIZE * BLOCK_SIZE - read)
            usage = agent.ask(turns)
            assert usage.cache_read_input_tokens == read
            assert usage.cache_creation.ephemeral_1h_input_tokens == for_an_hour
            assert usage.cache_creation.ephemeral_5m_input_tokens == whole - read - for_an_hour
            assert usage.cache_creation_input_tokens == whole - read
            assert usage.input_tokens == len(ids) - whole
            endless.learn(ids)
        billed, plain = (
            agent.ask([*turns, f"{number}.", SAID], is_billed=number == 8) for number in (8, 9)
        )
        assert billed.cache_read_input_tokens == plain.cache_read_input_tokens > 0
        assert billed.input_tokens == plain.input_tokens
        for number in range(16):  # twice the pool, of the same account
            agent.ask([f"{number} {SAID} {SAID} {SAID}"], is_kept=False)
        usage = agent.ask(turns)
        again = endless.read(prompts.ids(prompts.text(turns)))
        assert usage.cache_read_input_tokens == again
    if runner != "toy":
        with running(skerry, runner, numbers) as agent:
            assert agent.ask(turns).cache_read_input_tokens == again
