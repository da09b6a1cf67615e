"""The whole edge in front of a real engine: a toy model whose answers are worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
from tests.edge.byte_text import BOS, EOS, ByteText
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, events, specs
from tests.regions.toy_node import node_of

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner, next_token
from skerry_edge.api.app import create_app
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.http.server import listen, serve
from skerry_edge.limits import Limits
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog
from skerry_regions.region.local import LocalRegion

OTHER_ACCOUNT = "f" * 32
RUN, CHAT = f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


@dataclass
class Toy:
    client: httpx.AsyncClient
    engine: Engine
    tokens: TokenStore

    async def run(self, **body: Any) -> dict[str, Any]:
        reply = await self.client.post(RUN, json={**GREEDY, **body})
        assert reply.status_code == 200, reply.text
        return cast(dict[str, Any], reply.json()["result"])

    async def chat(self, **body: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": HI, **GREEDY, **body}
        return await self.client.post(CHAT, json=body)

    async def pool_is_whole(self) -> None:
        """Every block comes back, a step or two after the request is over."""
        async with asyncio.timeout(60):
            while self.engine.statistics().blocks_used:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.002)


@asynccontextmanager
async def toy(folder: Path) -> AsyncGenerator[Toy]:
    engine = Engine(
        ToyRunner(num_blocks=32, vocab_size=258, max_context=512),
        EngineConfig(),
        model_key=b"toy",
    )
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, now=0)
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    async with node_of(engine, model=MODEL) as node:
        edge = Edge(
            catalog=Catalog(specs()),
            texts={MODEL: cast(TextModel, ByteText())},
            region=LocalRegion(node),
            tokens=tokens,
            secret=b"s" * 32,
            limits=(limits := Limits(drain_seconds=1)),
        )
        listener = listen("127.0.0.1", 0, limits)
        taken = listener.getsockname()[1]
        serving = asyncio.create_task(
            serve(
                create_app(edge),
                listener=listener,
                limits=limits,
                ready=lambda: port.set_result(taken),
                stop=stop,
            )
        )
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{await port}",
                headers={"authorization": f"Bearer {token}"},
                trust_env=False,
                timeout=60,
            ) as client:
                yield Toy(client, engine, tokens)
        finally:
            stop.set()
            await serving


Scenario = Callable[[Toy], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario against a fresh engine; afterwards its pool must be whole."""

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with toy(tmp_path) as subject:
                await scenario(subject)
                await subject.pool_is_whole()

        asyncio.run(main())

    return run


def says(prompt: list[int], count: int) -> str:
    """The toy's greedy answer as text, up to its end-of-turn token."""
    ids = list(prompt)
    for _ in range(count):
        token = next_token(np.array(ids, np.int64), 258)
        if token == EOS:
            break
        ids.append(token)
    return bytes(each for each in ids[len(prompt) :] if each < 256).decode("utf-8", "replace")


def test_every_way_of_asking_gives_the_worked_out_answer(play: Callable[[Scenario], None]) -> None:
    async def scenario(subject: Toy) -> None:
        prompt = list(b"<user>hi\n<assistant>")
        want = says(prompt, 24)
        assert (await subject.run(prompt="hi"))["response"] == want
        assert (await subject.run(messages=HI))["response"] == want
        raw = await subject.run(prompt="hi", raw=True)
        assert raw["response"] == says([BOS, *b"hi"], 24)
        streamed = await subject.client.post(RUN, json={"prompt": "hi", "stream": True, **GREEDY})
        assert "".join(each["response"] for each in events(streamed.text)[:-1]) == want
        plain = (await subject.chat()).json()
        assert plain["choices"][0]["message"]["content"] == want
        chunks = events((await subject.chat(stream=True)).text)[:-1]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content", "") for delta in deltas) == want

    play(scenario)


def test_a_stop_string_gives_the_blocks_back_before_the_limit(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(subject: Toy) -> None:
        whole = (await subject.chat(max_tokens=200)).json()["choices"][0]["message"]["content"]
        stop = whole[10:12]
        body = (await subject.chat(max_tokens=200, stop=stop)).json()
        choice = body["choices"][0]
        assert choice["message"]["content"] == whole[: whole.index(stop)]
        assert choice["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] < 40

    play(scenario)


def test_prefixes_are_cached_per_tenant(play: Callable[[Scenario], None]) -> None:
    async def scenario(subject: Toy) -> None:
        prompt = "x" * 200

        async def cached() -> int:
            usage = (await subject.run(prompt=prompt))["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(), await cached()] == [0, 192]
        token, _ = subject.tokens.create(account_id=OTHER_ACCOUNT, now=0)
        reply = await subject.client.post(
            RUN.replace(ACCOUNT, OTHER_ACCOUNT),
            json={"prompt": prompt, **GREEDY},
            headers={"authorization": f"Bearer {token}"},
        )
        details = reply.json()["result"]["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 0}

    play(scenario)


def test_sampling_is_repeatable_by_its_seed(play: Callable[[Scenario], None]) -> None:
    async def scenario(subject: Toy) -> None:
        async def sampled(**body: Any) -> str:
            answer = (await subject.chat(temperature=1.0, max_tokens=24, **body)).json()
            return "|".join(choice["message"]["content"] for choice in answer["choices"])

        assert await sampled(seed=7) == await sampled(seed=7)
        assert len({await sampled(seed=seed) for seed in (1, 2, 3, 4)}) > 1
        assert len({await sampled() for _ in range(4)}) > 1
        three = (await sampled(seed=7, n=3)).split("|")
        assert len(three) == len(set(three)) == 3
        assert three[0] == await sampled(seed=7)

    play(scenario)


def test_concurrent_requests_do_not_mix(play: Callable[[Scenario], None]) -> None:
    async def scenario(subject: Toy) -> None:
        prompts = [f"The number {i} is" for i in range(8)]
        alone = [(await subject.run(prompt=prompt))["response"] for prompt in prompts]
        together = await asyncio.gather(*(subject.run(prompt=prompt) for prompt in prompts))
        assert [result["response"] for result in together] == alone

    play(scenario)


def test_logprobs_describe_the_greedy_choice(play: Callable[[Scenario], None]) -> None:
    async def scenario(subject: Toy) -> None:
        body = (await subject.chat(logprobs=True, top_logprobs=3, max_tokens=8)).json()
        content = body["choices"][0]["logprobs"]["content"]
        assert 7 <= len(content) <= body["usage"]["completion_tokens"] <= 8
        for entry in content:
            assert len(entry["top_logprobs"]) == 3
            assert entry["top_logprobs"][0] == {
                key: entry[key] for key in ("token", "logprob", "bytes")
            }

    play(scenario)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"prompt": ', 400),
        (b'{"prompt": "x", "messages": []}', 400),
        (b'{"messages": []}', 400),
        (b'{"prompt": "\xff"}', 400),
        (b'{"prompt": "x", "temperature": NaN}', 400),
        (b'{"prompt": "x", "max_tokens": 1000000}', 400),
        (b'{"prompt": "' + b"x" * 1000 + b'"}', 413),
        (b'{"prompt": "x", "lora": "a"}', 405),
    ],
)
def test_bad_input_leaves_the_pool_whole(
    play: Callable[[Scenario], None], body: bytes, status: int
) -> None:
    async def scenario(subject: Toy) -> None:
        assert (await subject.client.post(RUN, content=body)).status_code == status
        assert subject.engine.statistics().steps == 0

    play(scenario)


def test_clients_that_leave_give_their_blocks_back(play: Callable[[Scenario], None]) -> None:
    async def scenario(subject: Toy) -> None:
        body = {"prompt": "x" * 100, "stream": True, "max_tokens": 300, "logit_bias": {"257": -100}}
        for _ in range(6):
            async with subject.client.stream("POST", RUN, json=body) as reply:
                await anext(reply.aiter_lines())
        await subject.pool_is_whole()
        assert (await subject.run(prompt="hi"))["response"]

    play(scenario)
