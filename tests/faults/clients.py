"""Clients that ask the same questions again and again, and compare the answers bit for bit."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

WORDS = ("the", "sea", "is", "a", "dark", "wide", "road", "and", "ships", "go", "by", "at", "night")
SECONDS = 300.0  # for one answer, faults included


@dataclass(frozen=True)
class Question:
    """A streamed request: where it goes and what it says."""

    path: str
    body: dict[str, Any]


@dataclass
class Answer:
    """All that must not depend on what happens to nodes."""

    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    completion_tokens: int = 0
    num_done: int = 0
    errors: list[str] = field(default_factory=list)
    placed: str = field(default="", compare=False)  # the first node that ran it
    began: float = field(default=0.0, compare=False)  # seconds of the event loop: its head came

    def take(self, line: str) -> None:
        """Take in one line of the event stream."""
        if line == "data: [DONE]":
            self.num_done += 1
        elif line.startswith("data: "):
            self._take_chunk(json.loads(line.removeprefix("data: ")))
        elif line.startswith("event: error"):
            self.errors.append(line)

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk or "errors" in chunk:
            self.errors.append(json.dumps(chunk))
        self.text += chunk.get("response") or ""
        for choice in chunk.get("choices") or []:
            self.text += choice["delta"].get("content") or ""
            self.logprobs += (choice.get("logprobs") or {}).get("content") or []
            if choice.get("finish_reason"):
                self.finish_reasons.append(choice["finish_reason"])
        usage = chunk.get("usage") or {}
        self.completion_tokens = usage.get("completion_tokens", self.completion_tokens)


def questions(model: str, account: str, rng: Random, count: int, tokens: int) -> list[Question]:
    """Greedy and sampled, penalties and log-probabilities, short prompts and long ones."""
    return [_question(model, account, rng, number, tokens) for number in range(count)]


def _question(model: str, account: str, rng: Random, number: int, tokens: int) -> Question:
    prompt = " ".join(rng.choices(WORDS, k=rng.choice([8, 60, 150, 400])))
    body: dict[str, Any] = {
        "stream": True,
        "max_tokens": rng.randint(tokens // 2, tokens),
        "seed": rng.getrandbits(32),
        "temperature": rng.choice([0.0, 1.0, 2.0]),
    }
    if number % 3 == 0:
        body |= {"frequency_penalty": 0.5, "presence_penalty": 0.3}
    if number % 2:
        native = f"/client/v4/accounts/{account}/ai/run/{model}"
        return Question(native, body | {"prompt": prompt, "raw": True})
    extra = {"logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}
    messages = [{"role": "user", "content": prompt}]
    return Question(
        "/ai/v1/chat/completions", body | extra | {"model": model, "messages": messages}
    )


async def ask(client: httpx.AsyncClient, question: Question) -> Answer:
    """One streamed answer. What is not HTTP 200 is noted among its errors."""
    answer = Answer()
    try:
        async with client.stream(
            "POST",
            question.path,
            json=question.body,
            timeout=SECONDS,
            headers={"x-skerry-explain": "1"},
        ) as response:
            answer.began = asyncio.get_running_loop().time()
            answer.placed = response.headers.get("x-skerry-explain", "").partition(";")[0]
            if response.status_code != 200:
                answer.errors.append(f"{response.status_code} {await response.aread()!r}")
                return answer
            async for line in response.aiter_lines():
                answer.take(line)
    except httpx.HTTPError as error:
        answer.errors.append(repr(error))
    return answer
