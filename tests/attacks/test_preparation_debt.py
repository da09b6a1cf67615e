"""What is worked on for requests that are then refused: bounded per tenant, whatever it is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.edge.scripted_region import MODEL
from tests.edge.support import deployed

from skerry.errors import InvalidInput, RateLimited
from skerry_edge.api import bodies, edge_request
from skerry_edge.limits import Limits
from skerry_edge.telemetry.tracing import Trace, tracing
from skerry_edge.text.desk import Desk
from skerry_edge.text.preparation_debt import AT_ONCE_SECONDS, RATE, PreparationDebt

TENANT, OTHER = "a" * 32, "b" * 32


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0.001, 0.5)), max_size=60))
def test_no_tenant_takes_more_than_its_part(works: list[tuple[float, float]]) -> None:
    """In any stretch of time, beyond what the last one took that was let begin."""
    now, taken = 0.0, []
    preparation = PreparationDebt(lambda: now, AT_ONCE_SECONDS)
    for pause, seconds in works:
        now += pause
        try:
            preparation.check(TENANT)
        except RateLimited as refused:
            now += (refused.retry_after or 0) + 1e-6
            preparation.check(TENANT)  # as it says
        preparation.charge(TENANT, seconds)
        taken.append((now, seconds))
        preparation.check(OTHER)
    for first, (begun, _) in enumerate(taken):
        for last in range(first, len(taken)):
            total = sum(seconds for _, seconds in taken[first:last])
            assert total <= AT_ONCE_SECONDS + RATE * (taken[last][0] - begun) + 1e-6


def test_of_tenants_in_debt_the_first_are_forgotten_once_it_is_paid() -> None:
    now = 0.0
    preparation = PreparationDebt(lambda: now, AT_ONCE_SECONDS)
    for number in range(5):
        preparation.charge(str(number), 0.01)
    now = 1.0
    preparation.charge("x", 0.01)
    assert list(preparation.paid_at) == ["x"]


def test_a_request_that_is_refused_is_charged_and_one_that_is_let_in_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_request, "SECONDS_PER_BYTE", 1.0)
    with deployed(tmp_path, Limits(), at_once_seconds=0.25) as edge:
        for _ in range(3):
            assert edge.chat().status_code == 200
            assert edge.run(prompt="x").status_code == 200
        assert edge.chat(temperature=9).status_code == 400
        refused = edge.chat()
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 20  # seconds, of a body's hundred bytes
        other, _ = edge.edge.tokens.create(account_id=OTHER, now=0)
        path = edge.chat_path.replace(edge.chat_path.split("/")[4], OTHER)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        headers = {"authorization": f"Bearer {other}"}
        assert edge.client.post(path, json=body, headers=headers).status_code == 200


def test_what_waits_at_the_desk_is_given_up_with_the_debt() -> None:
    """Of a hundred prompts at once only so many are looked at as the tenant may have."""
    desk, begun = Desk(lambda: 0.0, 0.25), []

    async def ask(number: int) -> None:
        trace = Trace(str(number))
        with tracing(trace):
            try:
                await desk.of(TENANT).run(lambda: begun.append(number))
            finally:
                assert trace.prepared_seconds >= 0
                desk.preparation.charge(TENANT, 0.05)  # as the rim does at a refusal

    async def main() -> int:
        done = await asyncio.gather(*map(ask, range(100)), return_exceptions=True)
        return sum(isinstance(each, RateLimited) for each in done)

    assert asyncio.run(main()) == 100 - len(begun)
    assert len(begun) <= 10  # five, and those that were under way
    desk.close()


class Counted(bytes):
    """A body that knows how far it was looked at."""

    furthest = 0

    def __getitem__(self, key: object) -> bytes:  # type: ignore[override]
        assert isinstance(key, slice)
        type(self).furthest = max(self.furthest, key.stop)
        return super().__getitem__(key)


def test_a_body_that_makes_too_many_objects_is_not_looked_at_to_its_end() -> None:
    body = Counted(b'{"a":[' + b"[]," * 2_600_000 + b"[]]}")
    with pytest.raises(InvalidInput, match="lists and objects"):
        bodies.object_bytes(body)
    assert 0 < Counted.furthest <= 2 * bodies.PIECE_BYTES


TEXTS = st.sampled_from(["", "a", '"', "\\", "[{,]}", '\\"', "x" * 30, "é", "\n"])
VALUES = st.recursive(
    st.lists(TEXTS, max_size=4).map("".join) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.integers(1, 12))
def test_strings_are_left_out_wherever_a_piece_ends(value: object, size: int) -> None:
    body = msgspec.json.encode(value)
    shown: list[bytes] = []

    def string(match: re.Match[bytes]) -> bytes:
        shown.append(match[0])
        return b""

    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', string, body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "PIECE_BYTES", size)
        assert b"".join(bodies._pieces_without_strings(body)) == outside
