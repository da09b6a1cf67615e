"""A budget of reasoning from the request to the engine and back: real tokenizer, real weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.edge.engine_edge import DEFAULT, EngineEdge, engine_edge

from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_edge.text.model import Prompt
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

CACHE = Path(os.environ.get("SKERRY_TEST_HOME", Path(__file__).parents[4] / ".cache/skerry"))
TEMPLATE = (  # the model's own layout, and a thought before each answer
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
THOUGHT = "Two and two are four, since <three> and one are four as well; I am quite sure of it."
TURNS = [{"role": "user", "content": "2 + 2?"}]


@pytest.fixture(scope="module")
def files(default_model: ModelFiles) -> ModelFiles:
    return msgspec.structs.replace(default_model, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def talking(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineEdge]:
    with engine_edge(files, tmp_path_factory.mktemp("talking")) as edge:
        edge.talker.turn = edge.text.encode("<think>\n")
        yield edge


def chat(edge: EngineEdge, **fields: Any) -> Any:
    body = {"model": DEFAULT, "messages": TURNS, "temperature": 0, **fields}
    reply = edge.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_thought_within_its_budget_is_the_models_own(talking: EngineEdge) -> None:
    talking.says(f"{THOUGHT}\n</think>\n\nFour.")
    for budget in (None, 200):
        told = chat(talking, thinking_token_budget=budget, max_tokens=300)
        message = told["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == (THOUGHT, "Four.")
        assert told["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("budget", [1, 5, 12])
def test_a_longer_one_is_ended_there(talking: EngineEdge, budget: int) -> None:
    talking.says(f"{THOUGHT}\n</think>\n\nFour.")
    told = chat(talking, thinking_token_budget=budget, max_tokens=300)
    message = told["choices"][0]["message"]
    begun = talking.text.detokenizer().push(talking.text.encode(THOUGHT)[:budget])
    assert message["reasoning"] == begun.strip()
    assert message["content"] == ""  # what was put in its words' place makes it end
    assert told["choices"][0]["finish_reason"] == "stop"
    closing = talking.text.family.reasoning
    assert closing is not None
    end_ids = talking.text.encode(Prompt(closing.closing))
    thought = told["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert budget < thought <= budget + len(end_ids)
    assert told["usage"]["completion_tokens"] == budget + len(end_ids) + 1


@pytest.fixture(scope="module")
def real(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineEdge]:
    runner = NumbaRunner.open(files.weights, num_blocks=64, threads=2, cache_dir=CACHE / "cache")
    with engine_edge(files, tmp_path_factory.mktemp("real"), runner) as edge:
        yield edge


def test_the_real_model_answers_after_its_budget(real: EngineEdge) -> None:
    """SmolLM2, which was never trained to think, is kept from ending early."""
    free = chat(real, max_tokens=40, ignore_eos=True)["choices"][0]
    assert free["finish_reason"] == "length"
    thought = free["message"]["reasoning"]
    limited = chat(real, max_tokens=40, ignore_eos=True, thinking_token_budget=10)["choices"][0]
    begun = limited["message"]["reasoning"]
    assert begun
    assert thought.startswith(begun)
    assert limited["message"]["content"]
    low = chat(real, max_tokens=40, ignore_eos=True, reasoning_effort="low")["choices"][0]
    assert begun.startswith(low["message"]["reasoning"])  # a fifth: eight tokens
    none = chat(real, max_tokens=40, ignore_eos=True, reasoning_effort="none")["choices"][0]
    assert "reasoning" not in none["message"]
