"""`ai.batch` against the real edge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.edge.scripted_region import MODEL, Hold, answer
from tests.edge.support import ACCOUNT, PATIENCE, Deployment

from skerry import AI, AsyncAI, InvalidInput, NotFound, RequestTimeout

REQUESTS = [
    {"prompt": "a", "external_reference": "first"},
    {"prompt": "b", "temperature": 99},
    {"prompt": "c"},
]


@pytest.fixture
def ai(edge: Deployment) -> Iterator[AI]:
    url = f"http://127.0.0.1:{edge.port}"
    with AI(base_url=url, account_id=ACCOUNT, api_token=edge.token, max_retries=0) as ai:
        yield ai


def test_a_batch_and_its_answers(ai: AI) -> None:
    batch = ai.batch(MODEL, REQUESTS)
    assert batch.model == MODEL
    first, second, third = batch.wait(timeout=PATIENCE)
    assert (first.index, first.reference, first.error) == (0, "first", None)
    assert first.result.response == "Hello"
    assert first.unwrap() is first.result
    assert (second.index, second.reference, second.result) == (1, None, None)
    assert isinstance(second.error, InvalidInput)
    assert second.error.message.startswith("Bad input: temperature")
    with pytest.raises(InvalidInput, match="temperature"):
        second.unwrap()
    assert third.result.usage.completion_tokens == 6
    assert batch.status() == "done"
    assert [each.index for each in ai.find_batch(MODEL, batch.id)] == [0, 1, 2]


def test_waiting_has_an_end(ai: AI, edge: Deployment) -> None:
    edge.region.script = lambda submit: [Hold()]
    batch = ai.batch(MODEL, [{"prompt": "x"}])
    with pytest.raises(RequestTimeout, match=r"after 0\.01 s; it goes on"):
        batch.wait(timeout=0.01)
    assert batch.status() in ("queued", "running")
    batches = edge.edge.batches
    assert batches is not None
    batches.queue.cancel(ACCOUNT, batch.id)
    [answered] = batch.wait(timeout=PATIENCE)
    assert answered.error is not None
    assert answered.error.message == "The request was cancelled."


def test_an_unknown_batch(ai: AI) -> None:
    with pytest.raises(NotFound):
        ai.find_batch(MODEL, "unknown").status()


def test_with_asyncio(edge: Deployment) -> None:
    edge.region.script = lambda submit: answer("later")

    async def main() -> None:
        url = f"http://127.0.0.1:{edge.port}"
        async with AsyncAI(base_url=url, account_id=ACCOUNT, api_token=edge.token) as ai:
            batch = await ai.batch(MODEL, [{"prompt": "x"}] * 3)
            assert [each.unwrap().response async for each in batch] == ["later"] * 3
            assert await batch.status() == "done"
            found = ai.find_batch(MODEL, batch.id)
            assert len(await found.wait()) == 3

    asyncio.run(main())
