"""A thought and an answer, and who asks for them."""

from __future__ import annotations

from typing import Any

from tests.edge.support import Deployment

from skerry_regions.wire.output_marks import ReasoningLimitSpec

THOUGHT, TEXT = "Two and two,\nso <4>.", "Four, I think."
SAID = f"{THOUGHT}\n</think>\n\n{TEXT}"  # the prompt has begun the thought
NUM_TOKENS = len(SAID.encode()) + 1
NUM_THOUGHT = len(f"{THOUGHT}\n</think>".encode())
TURNS: list[Any] = [{"role": "user", "content": "2 + 2?"}]


def base(thinker: Deployment) -> str:
    return thinker.chat_path.removesuffix("/chat/completions")


def prompt(thinker: Deployment) -> str:
    return bytes(thinker.region.submits[-1].prompt_ids).decode()


def limit(thinker: Deployment) -> ReasoningLimitSpec | None:
    return thinker.region.submits[-1].reasoning


OFF = "<think>\n\n</think>\n\n"
