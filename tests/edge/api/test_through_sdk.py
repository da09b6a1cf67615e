"""The SDK against the real edge: what one side says is what the other understands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.edge.scripted_region import MODEL, Hold, answer
from tests.edge.support import ACCOUNT, ALIAS, UNSERVED, Deployment

import skerry
from skerry import AI, AsyncAI

TEXT = "Sk\u00e6rg\u00e5rd \U0001f30a"


@pytest.fixture
def ai(edge: Deployment) -> Iterator[AI]:
    with AI(base_url=url(edge), account_id=ACCOUNT, api_token=edge.token, max_retries=0) as ai:
        yield ai


def url(edge: Deployment) -> str:
    return f"http://127.0.0.1:{edge.port}"


@pytest.mark.parametrize("model", [MODEL, ALIAS])
def test_a_stream_says_what_a_plain_answer_says(ai: AI, edge: Deployment, model: str) -> None:
    edge.region.script = lambda submit: answer(TEXT)
    plain = ai.run(model, {"prompt": "x"})
    chunks = list(ai.run(model, {"prompt": "x"}, stream=True))
    assert plain.response == TEXT
    assert "".join(chunk.response for chunk in chunks) == TEXT
    assert plain.usage == chunks[-1].usage
    assert plain.usage.completion_tokens == len(TEXT.encode()) + 1


@pytest.mark.parametrize(
    ("raised", "attributes"),
    [
        (skerry.Overloaded("Full.", retry_after=3.0), ("Full.", 3.0)),
        (skerry.Unavailable("Nobody."), ("Nobody.", None)),
        (skerry.PromptTooLong("Long."), ("Long.", None)),
    ],
)
def test_an_error_of_the_region_arrives_as_itself(
    ai: AI, edge: Deployment, raised: skerry.SkerryError, attributes: tuple[str, float | None]
) -> None:
    def refuse(_: object) -> list[Exception]:
        raise raised

    edge.region.script = refuse
    with pytest.raises(type(raised)) as caught:
        ai.run(MODEL, {"prompt": "x"})
    assert (caught.value.message, caught.value.retry_after) == attributes
    assert caught.value.http_status == raised.status
    assert caught.value.request_id


def test_an_error_in_mid_stream_arrives_as_itself(ai: AI, edge: Deployment) -> None:
    edge.region.script = lambda submit: [list(b"ab"), skerry.Unavailable("The node is gone.")]
    stream = ai.run(MODEL, {"prompt": "x"}, stream=True)
    assert next(stream).response == "ab"
    with pytest.raises(skerry.Unavailable) as caught:
        next(stream)
    assert caught.value.message == "The node is gone."
    assert caught.value.request_id == stream.request_id


def test_what_a_caller_gets_wrong(ai: AI, edge: Deployment) -> None:
    hot: dict[str, Any] = {"prompt": "x", "temperature": "hot"}
    with pytest.raises(skerry.InvalidInput, match="exactly one of"):
        ai.run(MODEL, {})
    with pytest.raises(skerry.InvalidInput, match="temperature"):
        ai.run(MODEL, hot)
    with pytest.raises(skerry.ModelNotFound, match="not served"):
        ai.run(UNSERVED, {"prompt": "x"})
    with pytest.raises(skerry.InvalidInput, match=r"tools\[0\].name"):
        ai.run(MODEL, {"prompt": "x", "tools": [{"title": "f"}]})
    with (
        AI(base_url=url(edge), account_id=ACCOUNT, api_token="wrong") as stranger,
        pytest.raises(skerry.AuthenticationError),
    ):
        stranger.run(MODEL, {"prompt": "x"})
    with (
        AI(base_url=url(edge), account_id="f" * 32, api_token=edge.token) as lost,
        pytest.raises(skerry.NotFound),
    ):
        lost.run(MODEL, {"prompt": "x"})


def test_closing_a_stream_aborts_it(ai: AI, edge: Deployment) -> None:
    edge.region.script = lambda submit: [list(b"a"), Hold()]
    with ai.run(MODEL, {"prompt": "x"}, stream=True) as stream:
        assert next(stream).response == "a"
    assert edge.region.streams[-1].aborted.wait(timeout=30)


def test_cancelling_a_plain_call_aborts_it(edge: Deployment) -> None:
    edge.region.script = lambda submit: [Hold()]

    async def impatient() -> None:
        async with AsyncAI(base_url=url(edge), account_id=ACCOUNT, api_token=edge.token) as ai:
            task = asyncio.create_task(ai.run(MODEL, {"prompt": "x"}))
            while not edge.region.streams:  # noqa: ASYNC110  the region knows no events of ours
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(impatient())
    assert edge.region.streams[-1].aborted.wait(timeout=30)


def test_cancelling_the_reader_of_a_stream_aborts_it(edge: Deployment) -> None:
    edge.region.script = lambda submit: [list(b"a"), Hold()]

    async def read(heard: asyncio.Event) -> None:
        async with AsyncAI(base_url=url(edge), account_id=ACCOUNT, api_token=edge.token) as ai:
            async for chunk in await ai.run(MODEL, {"prompt": "x"}, stream=True):
                assert chunk.response == "a"
                heard.set()

    async def impatient() -> None:
        heard = asyncio.Event()
        task = asyncio.create_task(read(heard))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    assert edge.region.streams[-1].aborted.wait(timeout=30)


def test_the_catalog_and_schemas(ai: AI) -> None:
    names = [model.name for model in ai.models()]
    assert {MODEL, ALIAS} <= set(names)
    assert UNSERVED not in names
    assert [model.name for model in ai.models(search=ALIAS)] == [ALIAS]
    assert ai.models(author="nobody") == []
    assert "prompt" in ai.schema(MODEL).input["properties"]
    with pytest.raises(skerry.ModelNotFound):
        ai.schema(UNSERVED)
